"""Facts that are asked for in other words: what finds them knows what a text means, not how it is spelled.

A question shares at most one content word with its statement, and no name, number or answer. Nothing in everlong is
tuned or trained on PARAPHRASES. DEVELOPMENT is a second set of the same making, on other topics: the constants of the
fusion (everlong/index/fusion.h) were chosen on it, so a figure on it says nothing about new questions.
"""

from __future__ import annotations

from everlong.eval.facts import Fact

# (statement, question, answer)
_PAIRS: tuple[tuple[str, str, str], ...] = (
    (
        "Marta Lindqvist mends antique clocks in a workshop beside the docks.",
        "Who repairs old timepieces near the harbour?",
        "Marta Lindqvist",
    ),
    (
        "The greenhouse behind the school is heated by warm water from a data centre.",
        "Where does the energy for growing plants in winter at the pupils' garden come from?",
        "data centre",
    ),
    (
        "Doctor Okafor told the patient to give up salted butter for his heart.",
        "Which food did the physician forbid the sick man?",
        "butter",
    ),
    (
        "Every Thursday the ferry to the island is cancelled so that its engine can be serviced.",
        "On what day can nobody cross over by boat because of maintenance?",
        "Thursday",
    ),
    (
        "Little Anouk is frightened of nothing except vacuum cleaners.",
        "What household machine scares the girl?",
        "vacuum",
    ),
    (
        "The choir rehearses in the old fire station now that the chapel roof leaks.",
        "In which building do the singers practise these days?",
        "fire station",
    ),
    (
        "Grandfather keeps the key of the safe inside a hollow dictionary.",
        "Where has the old man hidden what opens the strongbox?",
        "dictionary",
    ),
    (
        "The bakery on Mill Lane sells out of rye loaves before seven in the morning.",
        "What sort of bread is gone first at the shop, at dawn?",
        "rye",
    ),
    (
        "Professor Haddad left the university to breed alpacas in the mountains.",
        "What animals does the former academic raise?",
        "alpacas",
    ),
    (
        "The wine was spoiled because the cellar had been flooded in March.",
        "Why could nobody drink what was stored underground?",
        "flooded",
    ),
    (
        "The pilot steered by the lighthouse after her radar had failed.",
        "What guided the aviator home when an instrument broke down?",
        "lighthouse",
    ),
    (
        "The orchestra's cellist learned to play from her deaf uncle.",
        "Which relative, who could hear nothing, taught the musician?",
        "uncle",
    ),
    (
        "Rust had eaten through the bridge's northern cables, so lorries were banned.",
        "What kind of vehicles may no longer cross the river, owing to corrosion?",
        "lorries",
    ),
    (
        "The spy passed her messages in the wrappers of lemon drops.",
        "How did the secret agent smuggle notes inside sweets?",
        "wrappers",
    ),
    (
        "At the summit the climbers found a typewriter chained to a rock.",
        "Which office machine awaited the mountaineers on top of the peak?",
        "typewriter",
    ),
    (
        "Inspector Varga solved the burglary by the smell of turpentine on a glove.",
        "What odour gave the thief away to the detective?",
        "turpentine",
    ),
    (
        "The new drug eases migraines but turns the tongue blue.",
        "What strange side effect does the headache medicine have?",
        "blue",
    ),
    (
        "Snow leopards were filmed near the abandoned mercury mine last winter.",
        "Beside what deserted place did wild cats appear before a camera?",
        "mine",
    ),
    (
        "The mayor pays for the town's fireworks out of parking fines.",
        "What money finances the yearly display of rockets in the sky?",
        "fines",
    ),
    (
        "The twins were separated at birth by a clerical mistake in Lisbon.",
        "In what city did a paperwork error tear apart two newborn siblings?",
        "Lisbon",
    ),
    (
        "Captain Brandt lost his left thumb to a mousetrap.",
        "What device cost the sailor one of his fingers?",
        "mousetrap",
    ),
    (
        "The library forgives overdue books if you bring a tin of soup.",
        "What can a late borrower donate instead of a penalty?",
        "soup",
    ),
    (
        "The comet will next be visible with the naked eye in 2061.",
        "When can we see that icy traveller of outer space again without a telescope?",
        "2061",
    ),
    (
        "Beneath the parking lot the archaeologists dug up a Roman bakery.",
        "What ancient business was uncovered by excavation under the asphalt?",
        "bakery",
    ),
    (
        "Our neighbour's parrot imitates the microwave so well that we keep getting up.",
        "Which pet makes us walk to the kitchen for nothing?",
        "parrot",
    ),
    (
        "The refugees crossed the border hidden in a lorry full of onions.",
        "Among which vegetables did the people who fled conceal themselves?",
        "onions",
    ),
    (
        "The marathon was won by a postman in borrowed shoes.",
        "What was the job of the man who came first in the long race?",
        "postman",
    ),
    (
        "To save electricity, the village switches its street lamps off at midnight.",
        "At what hour does it get dark outdoors because the community wants lower power bills?",
        "midnight",
    ),
    (
        "The sculptor carved the bride out of a single block of salt.",
        "Of which material is the statue of the woman getting married?",
        "salt",
    ),
    (
        "Her passport was stolen on the night train to Vienna.",
        "During which journey did she lose her travel document to a pickpocket?",
        "Vienna",
    ),
    (
        "The glacier has retreated so far that the ski lift ends on bare gravel.",
        "What do winter sports guests stand on now that the ice has melted away?",
        "gravel",
    ),
    (
        "The judge recused herself because the accused had once been her gardener.",
        "How did the magistrate know the defendant from earlier days?",
        "gardener",
    ),
    (
        "The blind cook recognises every spice by the sound it makes in the jar.",
        "By which sense does the sightless chef tell seasonings apart?",
        "sound",
    ),
    (
        "The treaty was signed on the back of a menu.",
        "What served as paper when both nations agreed to make peace?",
        "menu",
    ),
    (
        "Hail destroyed the apricot harvest for the third year running.",
        "What weather ruined the fruit growers' crop again?",
        "hail",
    ),
    (
        "The astronaut smuggled a harmonica aboard in her sock.",
        "Which musical instrument was secretly brought into space?",
        "harmonica",
    ),
    (
        "The company stopped making lawn mowers and now builds wheelchairs.",
        "What product does the firm manufacture nowadays?",
        "wheelchairs",
    ),
    (
        "The orphan was brought up by three nuns and a retired boxer.",
        "Which former sportsman helped to rear the child without parents?",
        "boxer",
    ),
    (
        "The tunnel collapsed when the drill struck an unmapped spring.",
        "Why did the underground passage fall in, what had nobody charted?",
        "spring",
    ),
    (
        "The auctioneer sold the forged painting to its own forger.",
        "Who bought the fake picture?",
        "forger",
    ),
    (
        "Bees are kept on the roof of the opera house.",
        "Where in the city do insects produce honey?",
        "opera",
    ),
    (
        "The children's hospital is named after a circus clown.",
        "Which entertainer gave his name to the clinic for young patients?",
        "clown",
    ),
    (
        "The hermit trades mushrooms for batteries with passing hikers.",
        "What does the recluse in the woods want from walkers in return for his fungi?",
        "batteries",
    ),
    (
        "The tailor sews a silver coin into the lining of every wedding suit.",
        "What lucky object is stitched into a groom's clothes?",
        "coin",
    ),
    (
        "The dam supplies nothing but an aluminium smelter.",
        "Who consumes all of the power that the reservoir's turbines generate?",
        "smelter",
    ),
    (
        "The election was decided by drawing a name from a milk churn.",
        "From what container came the winner after a tied vote?",
        "churn",
    ),
    (
        "The translator went on strike because she had to share a chair.",
        "Over which piece of furniture did the interpreter refuse to work?",
        "chair",
    ),
    (
        "The dog that guards the vineyard is afraid of balloons.",
        "What party decoration terrifies the hound among the grapes?",
        "balloons",
    ),
)

# (statement, question, answer)
_DEVELOPMENT_PAIRS: tuple[tuple[str, str, str], ...] = (
    (
        "The barber on Kestrel Street will not cut hair while it is raining.",
        "In what weather does the hairdresser turn his customers away?",
        "raining",
    ),
    (
        "Aunt Rosalind keeps her savings in a teapot shaped like an elephant.",
        "Where does a relation of ours store money?",
        "teapot",
    ),
    (
        "The violin competition was cancelled because the jury had eaten bad oysters.",
        "What seafood made the contest's judges ill?",
        "oysters",
    ),
    (
        "A family of hedgehogs has moved into the goalkeeper's left boot.",
        "In which footwear do spiny animals live now?",
        "boot",
    ),
    (
        "The submarine surfaced beside a wedding party on a raft.",
        "What celebration did the underwater vessel meet when it came up?",
        "wedding",
    ),
    (
        "Sister Benedicta brews a dark beer from chestnuts in the convent cellar.",
        "Which nuts go into the drink that the nun prepares?",
        "chestnuts",
    ),
    (
        "The new bus driver paints miniature portraits on matchboxes.",
        "What hobby, on a tiny scale, has the man at the wheel of public transport?",
        "portraits",
    ),
    (
        "The volcano woke the islanders with a smell of burnt sugar.",
        "What did the air reek of as the eruption began?",
        "sugar",
    ),
    (
        "Corporal Ibsen deserted in order to look after his sick mule.",
        "For the sake of which beast of burden did a soldier run away from the army?",
        "mule",
    ),
    (
        "The chess champion carries a pebble from every town she has lost in.",
        "What small souvenir does the grandmaster collect of her defeats?",
        "pebble",
    ),
    (
        "The hotel lift only stops at the third floor if somebody sings.",
        "How do guests get the elevator to halt at one storey?",
        "sings",
    ),
    (
        "The farmer pays his pickers in honey during the strawberry season.",
        "With what sweet stuff are field hands rewarded at berry time?",
        "honey",
    ),
    (
        "A flood carried the grand piano from the conservatory to the cricket pitch.",
        "Where did the heavy instrument come to rest because of the high water?",
        "cricket",
    ),
    (
        "The detective novelist dictates her chapters to a stuffed owl.",
        "Which bird listens while the crime writer composes?",
        "owl",
    ),
    (
        "The passengers of the delayed flight were fed on pickled herring.",
        "What fish did stranded air travellers receive as a meal?",
        "herring",
    ),
    (
        "The observatory closed when a casino was built on the next hill.",
        "Which gambling establishment's lights put an end to looking at the stars?",
        "casino",
    ),
    (
        "Young Tobias earns his pocket money by walking the undertaker's greyhounds.",
        "For whose pets does a boy get paid to go outside?",
        "undertaker",
    ),
    (
        "The potter mixes ash from the crematorium into her glazes.",
        "What unusual ingredient coats the ceramic vessels?",
        "ash",
    ),
    (
        "The queen's portrait hangs upside down in the customs office.",
        "How does a picture of the monarch look at the border authority?",
        "upside down",
    ),
    (
        "The railway gave up the valley line after a landslide in Hartfell.",
        "At which spot did falling earth finish the train connection?",
        "Hartfell",
    ),
    (
        "The dentist calms frightened patients by reciting football results.",
        "Which sports news soothes people with toothache who are scared?",
        "football",
    ),
    (
        "The museum's mummy turned out to be wrapped around a broomstick.",
        "What cleaning tool was found within the Egyptian corpse on exhibition?",
        "broomstick",
    ),
    (
        "The twins' treehouse burned down after they had tried to roast turnips.",
        "Which root vegetable were two brothers cooking as their den up in the branches caught fire?",
        "turnips",
    ),
    (
        "The ambassador was expelled for feeding the president's swans.",
        "Whose hunger did a diplomat still, for which he had to leave the country?",
        "swans",
    ),
    (
        "The weaver dyes her wool with walnut shells and rust.",
        "What gives the yarn of the woman at the loom its colour?",
        "walnut",
    ),
    (
        "The sailors' tavern bought its chandelier from a bankrupt theatre.",
        "Which failed playhouse sold a lamp to the seamen's pub?",
        "theatre",
    ),
    (
        "Engineer Castellan measures the sag of the wire with a fishing rod.",
        "What angler's gear does the technician use to check a slack cable?",
        "fishing",
    ),
    (
        "A thunderstorm turned the cream sour on the morning of the christening.",
        "What spoilt the dairy product just before the baby was baptised?",
        "thunderstorm",
    ),
    (
        "The locksmith is so forgetful that his own door has no lock.",
        "Whose home stands open owing to a poor memory?",
        "locksmith",
    ),
    (
        "The widow rents her attic to a retired trapeze artist.",
        "Which circus performer lodges beneath the roof of the woman whose husband has died?",
        "trapeze",
    ),
    (
        "The surgeon warms up her fingers by peeling grapes.",
        "What fruit helps the doctor to practise ahead of an operation?",
        "grapes",
    ),
    (
        "The frontier guards exchange stamps across the fence at Christmas.",
        "What do sentries of hostile states swap over a barrier during the holidays?",
        "stamps",
    ),
    (
        "The smuggled emeralds were hidden in the hollow heel of a tango dancer.",
        "Where on the performer did the illegal gems travel?",
        "heel",
    ),
    (
        "The village well has tasted of iron since the earthquake.",
        "Why is the flavour of the local drinking water metallic?",
        "earthquake",
    ),
    (
        "The bishop learned to skate at the age of seventy to win a bet.",
        "Why did an elderly cleric take to the ice?",
        "bet",
    ),
    (
        "The accountant proposed to her colleague by means of a spreadsheet.",
        "What kind of computer document contained the bookkeeper's offer of marriage?",
        "spreadsheet",
    ),
    (
        "The telescope mirror was ground from the bottom of a lemonade bottle.",
        "What humble glass became an astronomer's optical device?",
        "bottle",
    ),
    (
        "The prisoner filed through the bars with dental floss and sand.",
        "With which bathroom article did the convict escape from jail?",
        "floss",
    ),
    (
        "The carnival queen of that year was a plumber from Antwerp.",
        "What trade did the lady chosen at the festivities follow?",
        "plumber",
    ),
    (
        "The schoolmaster punished lateness by making pupils wind the tower clock.",
        "What chore awaited children who did not arrive on time in class?",
        "clock",
    ),
    (
        "The mountain hut is supplied with bread by a llama.",
        "What creature brings baked goods up to the hikers' shelter?",
        "llama",
    ),
    (
        "The poet destroyed his sonnets after a quarrel with the postmaster.",
        "With whom did the man of verse argue before he burnt his work?",
        "postmaster",
    ),
    (
        "The lottery millionaire spent everything on restoring a windmill.",
        "On what old building did the jackpot winner waste a fortune?",
        "windmill",
    ),
    (
        "The beekeeper's daughter is allergic to lavender.",
        "Which purple plant makes the child of the honey maker sneeze?",
        "lavender",
    ),
)


def _facts(pairs: tuple[tuple[str, str, str], ...]) -> tuple[Fact, ...]:
    return tuple(
        Fact(kind="paraphrase", key=answer, statement=statement, question=question, answer=answer, max_new_tokens=32)
        for statement, question, answer in pairs
    )


PARAPHRASES: tuple[Fact, ...] = _facts(_PAIRS)
DEVELOPMENT: tuple[Fact, ...] = _facts(_DEVELOPMENT_PAIRS)
