"""The letters of languages, most frequent first, and the encodings that texts of each were written in before UTF-8.

`encoding.py` tells by them which encoding some bytes are in.
"""

from __future__ import annotations

from typing import Final

WESTERN: Final = ("cp1252", "iso8859_15", "mac_roman", "cp850")
CENTRAL: Final = ("cp1250", "iso8859_2", "cp852")
BALTIC: Final = ("cp1257",)
CYRILLIC: Final = ("cp1251", "koi8_r", "koi8_u", "cp866", "iso8859_5", "mac_cyrillic", "cp855")

# Letters that a language borrows stand at the end.
ALPHABETS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("eaitnosrlhdcmufpgbywvkjxzqéèïçñöüáêôâàóíäå", WESTERN),  # English
    ("eanistrloudcmépghbfvqyàjxèkwçzêôîâïûœùëüñ", WESTERN),  # French
    ("enirstadlhuocmgbkfpwzvüäyöjßxéqáíàèñç", WESTERN),  # German
    ("eaonisrldtcumpgbfyvhóqíjzáéñxúkwüèçªº", WESTERN),  # Spanish
    ("aeoidsrntmculpgbhfvéãçíqázjóxúêõâàôüèwkyºª", WESTERN),  # Portuguese
    ("aieonltrsdcumpgvbfhzèqàùòéìkyjwxóîº", WESTERN),  # Italian
    ("enaitrsodlmghuvcpkbwjfzyëéxqáöüèóôíïäç", WESTERN),  # Dutch
    ("earntsilodmkgvufhpäbcöåyjwxzéqüàè", WESTERN),  # Swedish
    ("erntisadlogmkfbuvphyøcåæjwzxéüöäqèàó", WESTERN),  # Danish and Norwegian
    ("ainetsolukrmäjvphydgcböfwxzéqåšž", WESTERN),  # Finnish
    ("aeislnrtdocumpgbfvéhqóàèyíxjòzçúïükwñ", WESTERN),  # Catalan
    ("arniestlðugmkdfávóhíþböyjépæoúýxcwzq", WESTERN),  # Icelandic
    ("aioenwrszctkdypmlujghłbóąśężfńvćxźéüáöqäè", CENTRAL),  # Polish
    ("eoantsirvklmudpíchjázbyéěýřčžgšfůwúxňóťďqöüä", CENTRAL),  # Czech
    ("oaenirtsvklmdpucjházbyýíčéúgšžfľťóôwxňäďĺŕqöü", CENTRAL),  # Slovak
    ("aetlsnrikozágémbydvpuhcjfóöőíüúűwxqäč", CENTRAL),  # Hungarian
    ("eiarntulocsdmpăfbgvîţşzhâjxkwyéqöüáó", CENTRAL),  # Romanian
    ("aieonrjskutldmvpgzcbhčšžfćđywxqéáöü", CENTRAL),  # Croatian, Slovenian
    ("eitëarnshomlkdujpgvbfqzcyçxwéö", ("cp1252", "cp1250")),  # Albanian
    ("aeistnloukrmdvghpjbäõüfcöywzšxžqé", BALTIC),  # Estonian
    ("aisertunoklāmdpvjzībgēcšfļūhņžķģčywxqöüé", BALTIC),  # Latvian
    ("iasoerntuklmpdjvgėyųbšžcūčįzfąhęwxqéöü", BALTIC),  # Lithuanian
    ("aeinrlıdktsmuoybügşvzhcpfçğöjâîwxéqû", ("cp1254", "cp857")),  # Turkish
    ("nthicaglmroeuàsđpbdvyưkáâôóêíqăxùơzúèýõãwjf", ("cp1258",)),  # Vietnamese
    ("оаеинтсрвлкмдпуяыьгзбчйхжшюцщэфёъ", CYRILLIC),  # Russian
    ("оанитвіерсклудмпяьзгбчйїжхцшєюфщґ’", ("cp1251", "koi8_u", "iso8859_5", "cp866", "mac_cyrillic")),  # Ukrainian
    ("аиоентрсвлкдпмзгяъубчцйжщхфшюьѝ", ("cp1251", "koi8_r", "cp866", "iso8859_5", "mac_cyrillic")),  # Bulgarian
    ("аоиентрсвкдлпмујгзбчцшфжхњќљѓџѕђћ", ("cp1251", "iso8859_5", "mac_cyrillic", "cp855")),  # Macedonian, Serbian
    ("αοτινερκσςηπμυλίόγάήδέωχύθφβξώζψϊϋΐΰ", ("cp1253", "iso8859_7", "cp737")),  # Greek
    ("יוהלראתבמשנדקעםפסחכטגןצזךףץ", ("cp1255", "iso8859_8", "cp862")),  # Hebrew
    ("اليمونرتبةدعسفهكقحأجشطصإىخزثغضذئءظآؤ،؟", ("cp1256", "iso8859_6")),  # Arabic
    ("ايرنهدومتسشبکلزفعجقگآخپطصحچغذژضئظثكيأءة،؟", ("cp1256",)),  # Persian
    ("านรอเก่งมย้วลทสัด็ีิตปะหุูบคแพจชข์ึืใโำไๆถณธษศญผฟซฐภฮฝฏฎฒฑฬฉฯ", ("cp874",)),  # Thai
)

KANA: Final = (
    "のいるたしにはとてをがなかでれもっらりすさこまあきうくけせどだめよろつわえやおそみほげちばふひへびねじぶむべ"
    "ゆぞずごぎぐざぬぜぼょゃゅぁぃぅぇぉ"
)
# The most frequent characters of running text, in some order of how frequent they are.
KANJI: Final = (
    "日一人年大国本中出会長月時行事者上東生分自前後見間立合高手同部社子地方場学家通来下入内目小世取話今市全定田実力新"
    "気業体山政化理用明金動法度主意対代表関物最現心所発回当成文題書知言米数京保問受何住要名使"
)
SIMPLIFIED: Final = (
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家"
    "种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十"
    "民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯"
    "月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女"
    "变四神总何电数安少报才结反受目太量再感建务做接必场件计管期市直德资命山金指克许统区保至队形社便空决治展马科司五基"
    "眼书非则听白却界达光放强即像难且权思王象完设式色路记南品住告类求据程北边死张该交规万取拉格望觉术领共确传师观清今"
    "切院让识候带导争运"
)
TRADITIONAL: Final = (
    "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作里裡用道行所然"
    "家種事成方多經麼去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日軍者意無力它與長把機"
    "十民第公此已工使情明性知全三又關點正業外將兩高間由問很最重並物手應戰向頭文體政美相見被利什二等產或新己制身果加西"
    "斯月話合回特代內信表化老給世位次度門任常先海通教兒原東聲提立及比員解水名真論處走義各入幾口認條平系氣題活爾更別打"
    "女變四神總何電數安少報才結反受目太量再感建務做接必場件計管期市直德資命山金指克許統區保至隊形社便空決治展馬科司五"
    "基眼書非則聽白卻界達光放強即像難且權思王象完設式色路記南品住告類求據程北邊死張該交規萬取拉格望覺術領共確傳師觀清"
    "今切院讓識候帶導爭運"
)
HANGUL: Final = (
    "이다는에의가을하고를지은로기사한어들시그리나서자도대아일인정수있해과부보스전우구주게라장상여원제었만것면와적신오"
    "마관무안없니으세위연공비성용조때말경내생치문했모습화방선동트실중요교국현각당남영드프음식금런렇발데법소물명행또년"
    "단계까불분회산바간재된저양작같미느람할러려타학개업체본후파술반통포입살강심두더월야민결유질감점진책출역집"
)
