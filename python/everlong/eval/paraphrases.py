"""Facts that are asked for in other words: what finds them knows what a text means, not how it is spelled.

A question shares at most one content word with its statement, and no name, number or answer. Nothing in everlong is
tuned or trained on them; what is tuned is tuned on a second set of the same making (everlong.eval.development).
"""

from __future__ import annotations

# (statement, question, answer)
PARAPHRASED: tuple[tuple[str, str, str], ...] = (
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
