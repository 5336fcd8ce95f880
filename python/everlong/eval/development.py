"""The development set: facts that are asked for in other words, as those of everlong.eval.paraphrases, on other topics.

The constants of the fusion (everlong/index/fusion.h) were fitted on it, so a figure on it says nothing about new
questions. It shares no fact and no answer with PARAPHRASES.
"""

from __future__ import annotations

from everlong.eval.facts import Fact, paraphrased, planted_together

# Statement, question, answer, a line each.
_TEXT = """
The barber on Kestrel Street will not cut hair while it is raining.
In what weather does the hairdresser turn his customers away?
raining

Aunt Rosalind keeps her savings in a teapot shaped like an elephant.
Where does a relation of ours store money?
teapot

The violin competition was cancelled because the jury had eaten bad oysters.
What seafood made the contest's judges ill?
oysters

A family of hedgehogs has moved into the goalkeeper's left boot.
In which footwear do spiny animals live now?
boot

The submarine surfaced beside a wedding party on a raft.
What celebration did the underwater vessel meet when it came up?
wedding

Sister Benedicta brews a dark beer from chestnuts in the convent cellar.
Which nuts go into the drink that the nun prepares?
chestnuts

The new bus driver paints miniature portraits on matchboxes.
What hobby, on a tiny scale, has the man at the wheel of public transport?
portraits

The volcano woke the islanders with a smell of burnt sugar.
What did the air reek of as the eruption began?
sugar

Corporal Ibsen deserted in order to look after his sick mule.
For the sake of which beast of burden did a soldier run away from the army?
mule

The chess champion carries a pebble from every town she has lost in.
What small souvenir does the grandmaster collect of her defeats?
pebble

The hotel lift only stops at the third floor if somebody sings.
How do guests get the elevator to halt at one storey?
sings

The farmer pays his pickers in honey during the strawberry season.
With what sweet stuff are field hands rewarded at berry time?
honey

A flood carried the grand piano from the conservatory to the cricket pitch.
Where did the heavy instrument come to rest because of the high water?
cricket

The detective novelist dictates her chapters to a stuffed owl.
Which bird listens while the crime writer composes?
owl

The passengers of the delayed flight were fed on pickled herring.
What fish did stranded air travellers receive as a meal?
herring

The observatory closed when a casino was built on the next hill.
Which gambling establishment's lights put an end to looking at the stars?
casino

Young Tobias earns his pocket money by walking the undertaker's greyhounds.
For whose pets does a boy get paid to go outside?
undertaker

The potter mixes ash from the crematorium into her glazes.
What unusual ingredient coats the ceramic vessels?
ash

The queen's portrait hangs upside down in the customs office.
How does a picture of the monarch look at the border authority?
upside down

The railway gave up the valley line after a landslide in Hartfell.
At which spot did falling earth finish the train connection?
Hartfell

The dentist calms frightened patients by reciting football results.
Which sports news soothes people with toothache who are scared?
football

The museum's mummy turned out to be wrapped around a broomstick.
What cleaning tool was found within the Egyptian corpse on exhibition?
broomstick

The twins' treehouse burned down after they had tried to roast turnips.
Which root vegetable were two brothers cooking as their den up in the branches caught fire?
turnips

The ambassador was expelled for feeding the president's swans.
Whose hunger did a diplomat still, for which he had to leave the country?
swans

The weaver dyes her wool with walnut shells and rust.
What gives the yarn of the woman at the loom its colour?
walnut

The sailors' tavern bought its chandelier from a bankrupt theatre.
Which failed playhouse sold a lamp to the seamen's pub?
theatre

Engineer Castellan measures the sag of the wire with a fishing rod.
What angler's gear does the technician use to check a slack cable?
fishing

A thunderstorm turned the cream sour on the morning of the christening.
What spoilt the dairy product just before the baby was baptised?
thunderstorm

The locksmith is so forgetful that his own door has no lock.
Whose home stands open owing to a poor memory?
locksmith

The widow rents her attic to a retired trapeze artist.
Which circus performer lodges beneath the roof of the woman whose husband has died?
trapeze

The surgeon warms up her fingers by peeling grapes.
What fruit helps the doctor to practise ahead of an operation?
grapes

The frontier guards exchange stamps across the fence at Christmas.
What do sentries of hostile states swap over a barrier during the holidays?
stamps

The smuggled emeralds were hidden in the hollow heel of a tango dancer.
Where on the performer did the illegal gems travel?
heel

The village well has tasted of iron since the earthquake.
Why is the flavour of the local drinking water metallic?
earthquake

The bishop learned to skate at the age of seventy to win a bet.
Why did an elderly cleric take to the ice?
bet

The accountant proposed to her colleague by means of a spreadsheet.
What kind of computer document contained the bookkeeper's offer of marriage?
spreadsheet

The telescope mirror was ground from the bottom of a lemonade bottle.
What humble glass became an astronomer's optical device?
bottle

The prisoner filed through the bars with dental floss and sand.
With which bathroom article did the convict escape from jail?
floss

The carnival queen of that year was a plumber from Antwerp.
What trade did the lady chosen at the festivities follow?
plumber

The schoolmaster punished lateness by making pupils wind the tower clock.
What chore awaited children who did not arrive on time in class?
clock

The mountain hut is supplied with bread by a llama.
What creature brings baked goods up to the hikers' shelter?
llama

The poet destroyed his sonnets after a quarrel with the postmaster.
With whom did the man of verse argue before he burnt his work?
postmaster

The lottery millionaire spent everything on restoring a windmill.
On what old building did the jackpot winner waste a fortune?
windmill

The beekeeper's daughter is allergic to lavender.
Which purple plant makes the child of the honey maker sneeze?
lavender

Halima paints the ceilings of railway waiting rooms for a living.
How does the artist who decorates stations overhead earn money?
ceilings

Our landlady will rent only to people who play no brass instrument.
Tenants who blow the trumpet are not welcome; which class of musicians does the house owner refuse?
brass

The reservoir froze so hard in January that the town held its market on it.
What commercial gathering took place upon solid water that winter?
market

Old Petersen has worn odd socks ever since his brother drowned.
What does the bereaved man put on his feet that does not match?
socks

The night nurse on ward nine knits mittens for newborn lambs.
For which young farm animals does a hospital worker make woollen things after dark?
lambs

The tram to the cemetery carries no passengers on Mondays, only flowers.
At the start of the week, what travels on the line to the graves in place of people?
flowers

Because the printer ran out of black ink, the phone directory came out in green.
In which colour did the book of subscribers' numbers appear?
green

Elspeth named her yacht after the inspector who had tried to seize it.
After which official was a sailing vessel called?
inspector

The orchard's best pear tree grows out of a wrecked hearse.
From what sort of ruined funeral car does fruit sprout?
hearse

The physicist writes all her equations on the bathroom tiles with a lipstick.
What cosmetic does a scientist use to do her sums?
lipstick

Ravi is the only one in his family who cannot stand mangoes.
Which tropical fruit does the lad dislike, unlike all his relatives?
mangoes

Supper at the monastery is eaten in silence, apart from Easter Sunday, when riddles are allowed.
What may the brothers say to each other over their meal at the feast of the resurrection?
riddles

The chapel of Cape Orlo was moved forty metres inland on greased rails in 1931.
In what year was the house of prayer shifted away from the eroding cliff?
1931

The drummer of the wedding band is also the village's only midwife.
Who delivers babies in the hamlet, besides keeping the beat at parties?
drummer

Nobody swims in the quarry pond, since a tractor lies just below the surface.
What sunken farm machine makes bathing in that pit dangerous?
tractor

The heiress left her fortune to a shop that sells only buttons.
Which merchants inherited the rich lady's estate: those dealing in what small fasteners?
buttons

Our chemistry teacher lost both eyebrows in a demonstration of rocket fuel.
What was burnt off the face of the man who showed pupils an experiment?
eyebrows

The bank robbers got away on a tandem.
On what two-seated vehicle did the thieves flee with the money?
tandem

Every evening at six the zookeeper reads the newspaper aloud to the gorillas.
Which apes are told the daily headlines?
gorillas

The concrete of the new stadium has cracked because sea sand was mixed into it.
Why is the sports arena's structure already damaged?
sea sand

Colonel Druce is buried with his bicycle.
What means of transport lies in the officer's grave?
bicycle

The mural in the post office shows the founding of the city by a washerwoman.
According to a painted wall, what occupation had the woman who established the settlement?
washerwoman

Insurance for the fair was refused on account of the sword swallowers.
Which performers made the event too risky for any policy?
sword

Tickets for the puppet ballet are paid for with empty jam jars.
What do visitors hand over at the marionette theatre's box office?
jars

The twelfth of May is the day when the storks come back to Rovin.
On which date do the big white birds return from the south?
twelfth

A short circuit in the aquarium's pump killed all the seahorses.
What creatures perished following the electrical fault in the fish tanks?
seahorses

The archivist found the missing battle map being used to line a drawer of spoons.
What cutlery was lying upon a lost historical chart?
spoons

Madame Tissot trains her pickpockets on a dummy hung with bells.
What tells the gang's instructor that an apprentice was clumsy?
bells

The plane turned around over Greenland because a passenger had brought a badger.
Which wild mammal forced the aircraft to go back?
badger

Grandmother's recipe for gingerbread asks for a pinch of gunpowder.
What explosive ingredient belongs in the spicy Christmas biscuits?
gunpowder

The ghost train is repaired by a former watchmaker with one arm.
What limb is the mechanic of the spooky fairground ride missing?
arm

Since the merger, all the clerks have to clock in by thumbprint.
By means of what do office employees prove their presence now that both firms are one?
thumbprint

The river changed its course overnight, and the frontier post now stands in a foreign country.
What is on the wrong side of the border now because of a shifting stream?
post

The novelist's widow burned the sequel in the garden incinerator.
Who destroyed the second volume by fire?
widow

Kittens born in the brewery are given to whoever guesses their weight.
How do people win a young cat where ale is made?
weight

The senator faints at the sight of cut flowers.
What harmless bouquet makes the politician pass out?
flowers

Ingrid inherited her perfect pitch from a father who tuned foghorns.
What sound signals for ships did the dad of that gifted girl adjust?
foghorns

The gymnasium smells of cinnamon since the bakers' strike was settled there.
What spice can one notice in the air of the sports hall?
cinnamon

A shipment of umbrellas was held up by customs in the driest month on record.
Which rain gear got stuck at the port during a drought?
umbrellas

The brothers have not spoken since the quarrel about the accordion.
Over which squeezebox did two siblings fall out for good?
accordion

No one in the crew would sail on a Friday, so the frigate lost the race.
What superstition about a weekday kept the seamen ashore and cost them victory?
Friday

The pharmacist on the corner closes whenever there is an eclipse.
During which astronomical events can you buy no medicine round here?
eclipse

Desert foxes have learned to open the geologists' cool boxes.
What containers of the rock researchers do sly predators raid?
cool boxes

The castle's drawbridge is lowered by a washing machine motor.
From which home appliance comes the engine that lets visitors over the moat?
washing machine

Mrs Abernathy keeps a list of everyone who has ever sneezed in church.
Which bodily noises during worship does the old lady write down?
sneezed

The herd was led home through the blizzard by a blind ewe.
What sort of sheep, unable to see, guided the flock in heavy snow?
ewe

The mathematician was arrested for counting cars outside the ministry.
What was the scholar tallying when police took him away?
cars

After the fire, the congregation met in a bowling alley.
In what place of amusement did worshippers gather while their burnt temple lay in ruins?
bowling

The steelworks' chimney was painted pink to please the air force.
Which military branch wanted the smokestack in a bright shade?
air force

The king's taster was secretly poisoning the queen's rival.
What position at court did the murderer of the royal lady's competitor hold?
taster

The carpenter accepts payment in firewood only from left-handed customers.
Which clients may settle the joiner's bill with logs?
left-handed

At the age of four, Leopold could name every bone of the hand.
What anatomical knowledge did the small prodigy show off?
bone

The earth under the vineyard trembles every time the quarry blasts at noon.
When during the day do the grapes shake?
noon

The radio station broadcasts nothing but frog calls between two and three in the morning.
Which amphibians can be heard on the wireless in the small hours?
frog

Her first violin was carved out of the door of a prison cell.
Where did the wood for the young musician's fiddle come from?
prison

The spring festival was put off until the measles had passed.
Which childhood disease delayed the celebrations in April?
measles

Uncle Florian refuses to ride in anything without a rear window.
What must a vehicle have at the back for our relative to get in?
window

The meteorite went through the roof of a tax office.
Which government building was struck by a stone falling from space?
tax

A retired judge umpires the snail races behind the inn.
What slow contests does the former magistrate oversee next to the pub?
snail

The baron's tunnel to the kitchen was dug with a silver ladle.
What table utensil served the nobleman as a spade?
ladle

The fishing fleet stays in harbour this week because of drifting mines.
What peril left over from wartime keeps the trawlers ashore?
mines

The pension office sent Mr Okonjo a birthday card for his hundred and eleventh birthday, three years after his death.
To whom did the authorities address greetings although he was no longer alive?
Okonjo

The bookshop's cat sleeps exclusively on atlases.
What kind of volumes does the store's pet choose for its bed?
atlases

For want of a trumpet, the last post was played on a kazoo.
Which toy instrument sounded the military farewell?
kazoo

Half of the pilgrims turned back when their guide admitted that he was an atheist.
What confession by the leader made many devout travellers give up?
atheist

The ice cream van is parked outside the courthouse on sentencing days.
Where does the seller of frozen treats wait when verdicts are announced?
courthouse

The countess traded an emerald necklace for a seat in the last lifeboat.
With what jewel did the noblewoman buy her rescue from the sinking liner?
necklace

The caretaker oils the swings with leftover goose fat.
What grease from the kitchen stops the playground from squeaking?
goose

Viktor failed his driving test because he stopped to rescue a tortoise.
Which reptile is to blame that a learner got no licence?
tortoise

The sleepwalker of Brill was found on the bandstand, conducting.
What was the person doing who wandered about at night with closed eyes?
conducting

The hill fort was discovered by a woman looking for her lost hearing aid.
What was missing when somebody stumbled upon prehistoric ramparts?
hearing aid

The vet prescribes half a glass of stout to racehorses with a cough.
Which drink cures the throats of thoroughbreds?
stout

All the portraits in the town hall have had their moustaches painted out by order of the mayoress.
What facial hair did a lady in office remove from the pictures?
moustaches

The stuntman is afraid of escalators.
What moving stairs frighten a man who jumps off buildings for films?
escalators

They built the new kindergarten in the shell of a bankrupt nightclub.
In what former place of dancing do toddlers spend their day?
nightclub

The tea in the signal box is brewed with water from the locomotive.
From what does the railwayman get hot liquid for his drink?
locomotive

The cartographer's assistant added an island named after her own dog.
What invented piece of land did a young mapmaker draw?
island

The miners' band practises two hundred metres under the ground because of the echo.
Why do the colliery's players rehearse so deep down?
echo

The president's speech was cut short by a swarm of ladybirds.
What spotted insects put an end to the head of state's address?
ladybirds

The butcher's son became a vegetarian after a visit to the aquarium.
Why did the offspring of a meat seller change his diet: which outing was responsible?
aquarium

In the flooded street, the twins delivered milk by canoe.
What kind of boat brought dairy bottles to houses under water?
canoe

The ropemaker can tell the county where hemp was grown by chewing it.
How does the craftsman recognise his raw material's origin?
chewing

Cousin Mathilde's wedding dress was sewn from a parachute.
Out of what airman's equipment came the clothes of the bride?
parachute

The dictator banned bananas after a cartoon in the student paper.
Which yellow fruit did the tyrant forbid?
bananas

A landslip opened the sealed crypt of the fourth abbot.
What tomb was laid bare as the slope gave way?
crypt

Patients at the seaside sanatorium are weighed together with their suitcases.
What luggage goes on the scales along with the sick?
suitcases

The inventor of the folding ladder died by falling out of bed.
From which piece of furniture came the deadly tumble of the man who thought up collapsible steps?
bed

Hardly anyone knows that the cathedral's great organ is powered by a waterwheel.
What drives the bellows of the large church instrument?
waterwheel

The smuggler was betrayed by his talking mynah.
What sort of bird gave the contraband runner away?
mynah

The winning pumpkin was hollowed out and rowed across the lake.
What giant vegetable was turned into a boat?
pumpkin

Lieutenant Faro blew up the wrong bridge, which is why the old one at Selm survives.
How come the historic crossing still stands: what mistake did a young officer make in demolition?
wrong

The laundry of the grand hotel is done by inmates of the women's jail.
Who washes sheets for the luxury guests?
inmates

My aunt reads the future in spilled paint.
What does our relation look at to foretell destiny?
paint

The mountain rescue team keeps a piano at the upper hut to stay sane.
Which musical instrument comforts volunteers who save climbers?
piano

The first edition of the dictionary left out the word for Tuesday.
What term for a day was forgotten by the lexicon's makers?
Tuesday

Wolves returned to the forest when the cuckoo clock factory shut.
Whose closing let grey predators come back among the trees?
factory

The diver's wedding ring was recovered from the stomach of a halibut.
Inside which fish did the gold band turn up?
halibut

The crossword in the Sunday paper is set by a convicted arsonist.
What crime did the composer of the weekend puzzle commit?
arsonist

On the eve of exams the students polish the nose of the bronze pig for luck.
Which metal animal do nervous undergraduates rub?
pig

The border guard confiscated forty kilos of moss.
What plants from the woods were seized by a customs officer?
moss

The lock-keeper's wife runs the narrowest restaurant in the land, with room for three.
How many diners can eat in the tiny establishment by the canal?
three

The bells of Saint Odo are silent because a rare falcon is nesting in the tower.
Why may nobody ring from the steeple this season?
falcon

Sergeant Pell cleans the regiment's cannon with a toothbrush as a punishment.
What tool of dental hygiene does a disciplined soldier have to scrub artillery with?
toothbrush

The hypnotist lost his licence after the whole audience had woken up speaking Danish.
Which language did spectators suddenly talk following the trance?
Danish

The oldest rose in the convent garden blooms only when it has been insulted.
How must one treat the ancient shrub so that it flowers?
insulted

The apprentice put sawdust in the flour, and three inns were closed.
What was wrongly blended into the baking supplies?
sawdust

A trained otter retrieves golf balls from the pond of the ninth hole.
Which animal fetches what players lose in the water?
otter

Our school's fire drill always takes place during the headmistress's piano lesson.
When is the evacuation practised: while the principal is busy with what?
lesson

The antiques dealer sleeps in a coffin so as to save space.
In what does the trader of old furniture spend the night?
coffin

The frost split the statue of the general from helmet to stirrup.
What weather broke the monument of a commander on horseback?
frost

The fruit bats over the harbour leave at dusk when the cannery whistle blows.
What signal sets off the flying mammals in the evening?
whistle

The jury deliberated in a caravan, as the courthouse had dry rot.
In what kind of trailer did twelve citizens agree on their verdict?
caravan

Zelda goes to collect her pension every month dressed as a pirate.
In which costume does an elderly woman fetch her money?
pirate

The shipwrecked cook survived for nine weeks on candles and gulls.
What did the castaway from the galley eat, apart from seabirds?
candles

The telegraph wires hum in B flat whenever the wind is from the east.
From which direction must it blow for the lines overhead to sing?
east

The butler's memoirs were written in invisible ink on wallpaper.
On what did the manservant set down his life story?
wallpaper

The dam-busting beavers were relocated to a military firing range.
To what army ground were the flat-tailed rodents taken?
firing range

Baroness Tolnay was the first woman to be fined for smoking on a zeppelin.
Aboard which airship did an aristocrat get into trouble with a cigarette?
zeppelin

The avalanche stopped a hand's breadth from the schoolroom stove.
What heater did the mass of snow nearly reach?
stove

The gardener waters the palm house with leftover tea.
What beverage do exotic trees under glass receive?
tea

The soprano insures her laugh for half a million.
What feature of the singer is covered by a costly policy?
laugh

Brother Anselm copied the whole psalter with a quill from his own crow.
Which bird supplied the pen with which a monk wrote out sacred songs?
crow

The power cut was caused by a squirrel with a taste for copper.
Which rodent left the district without electricity?
squirrel

The champion ploughman listens to polkas while he turns the soil.
What dances accompany the prize-winning farmer in the field?
polkas

The visiting team was given the wrong kit and had to play in aprons.
What garments for cooking did the footballers wear in that match?
aprons

It was a mispronounced vowel that unmasked the impostor at the embassy.
What slip of the tongue exposed the false diplomat?
vowel

The perfume was withdrawn after it had attracted wasps.
What stinging pests were drawn by the fragrance that is no longer sold?
wasps

The veteran keeps the bullet that missed him in a thimble.
In what sewing aid is a soldier's souvenir stored?
thimble

Fog delayed the execution until the pardon had arrived.
Thanks to which weather was the condemned man still alive as mercy came?
fog

The island's only traffic light is switched on for tourists.
For whose benefit does a signal at the crossroads go red and green?
tourists

The geography teacher navigates by the smell of the bakeries.
How does the schoolmaster who explains maps find his own way about town?
smell

The hunter missed the boar and hit the weathervane of Saint Hubert's chapel.
What was struck by the bullet instead of a wild pig?
weathervane

At low tide the villagers race pigs on the sand for the bishop's cup.
Which livestock compete along the beach for a cleric's trophy?
pigs

The seamstress hid the deserter in a crate marked as corsets.
What ladies' undergarments were said to be in the box with the runaway soldier?
corsets

The glass in the conservatory was replaced with old photographic plates.
Which leftovers of a portrait studio now let in light over the plants?
photographic

The doctor's handwriting once caused a patient to be measured for skis instead of spectacles.
What winter equipment did someone nearly get owing to an illegible prescription?
skis

The astronomer's husband sells telescopes to sailors.
What does the spouse of a stargazer deal in?
telescopes

Rain falls so seldom in Ouadra that the children learned of puddles from books.
What did youngsters of the arid place know merely through reading?
puddles

The heir to the throne dropped out to study the migration of eels.
Which slippery fish interest the crown prince more than ruling?
eels

The town crier lost his voice on the day of the flood warning.
Who was hoarse just when danger had to be announced?
crier

The union agreed to the new shifts in return for a ping-pong table.
What did workers receive for accepting different hours?
ping-pong

The elephant at the circus will only bow to people in hats.
What headgear earns a spectator a greeting from the huge beast?
hats

The duke's library contains one genuine book; the rest are painted wood.
Of what material are nearly all the nobleman's false volumes?
wood

The tenor broke his ankle stepping off the stage into a tuba.
Into which instrument did the singer fall and hurt his foot?
tuba

The cheese is ripened in a disused missile silo.
Where does a dairy let its rounds mature, in what relic of the Cold War?
silo

The philosopher resigned his chair to drive an ice resurfacing machine.
What did the thinker do upon quitting academia?
drive

The skeleton in the biology room is that of a former headmaster.
Whose bones are used for teaching anatomy to the class?
headmaster

Goats are let loose on the ramparts every spring in place of gardeners.
Which creatures do the mowing around the fortress?
goats

The village idiot turned out to be the author of the anonymous sonnets.
Who had really composed poems that nobody would sign?
idiot

The admiral gets seasick on anything larger than a rowing boat.
On what craft alone does the navy's chief feel well?
rowing

The stationmaster proposes a toast in elderflower syrup whenever the express is punctual.
What is drunk to honour a fast train that comes on time?
elderflower

The cellar of the embassy holds four thousand jars of pickled walnuts.
What preserved nuts are hoarded underneath the diplomats' mansion?
walnuts

The boy who cried during the eclipse grew up to be a solar engineer.
What career did a child choose who had once wept as the daylight vanished?
engineer

Maestro Bellini stopped the symphony to let a hedgehog leave the hall.
For which prickly visitor did the conductor interrupt a concert?
hedgehog

The divers' club meets on the first Wednesday of the month in a drained swimming pool.
In which week of each month do underwater enthusiasts assemble?
first

The jockey weighs less than his saddlebag of trophies.
What is heavier than the little horseman?
trophies

Because its keeper had gout, the toll gate stood open for a whole summer.
Which ailment let everybody use the turnpike free of charge?
gout

The sugar factory dyes its waste water violet on the national holiday.
On what occasion does effluent of the refinery take on a purple hue?
national holiday

The mechanic named his daughters after gearboxes.
What car parts gave a garage man's girls their first names?
gearboxes

A clumsy waiter revealed the recipe of the secret sauce to the competition.
Through whom did rivals find out how to prepare the famous dressing?
waiter

The surveyor found that the church stands in two dioceses, with the altar in neither.
Which holy table belongs to no bishop's territory?
altar

The rope bridge is safe for mules but not for donkeys, for they stop to look down.
Which long-eared beasts had better not go over the hanging walkway?
donkeys

The ventriloquist is suing his dummy's manufacturer for damage to his reputation.
Against whom has the stage performer gone to court?
manufacturer

Nine of the ten wells in the oasis belong to the widow of a camel thief.
Who owns nearly all drinking water of the desert settlement?
widow

The cosmonaut grew a radish on board and shared it with nobody.
What did a spacefarer raise and eat all alone?
radish

The blacksmith makes no horseshoes in leap years.
When does the man at the anvil decline to equip steeds?
leap years

The postcard arrived thirty years late, with a stamp of a country that no longer exists.
How long was the holiday greeting in the mail?
thirty
"""


def _parsed(block: str) -> Fact:
    statement, question, answer = block.splitlines()
    return paraphrased(statement, question, answer)


DEVELOPMENT: tuple[Fact, ...] = planted_together(_parsed(block) for block in _TEXT.strip().split("\n\n"))
