"""Words that facts are made of. Names are of no region, so that they do not suggest a city."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    """
    amber crimson silver velvet frozen hollow gentle distant rusty marble lucky purple wooden golden stormy quiet
    copper crooked ivory jolly misty scarlet spotted tiny wandering yellow brave clever dusty eager faded giant
    humble icy jagged lonely mellow narrow orange polished rapid shiny tangled upright vivid woolen azure blazing
    cobalt drowsy emerald floating glossy hidden indigo jade knotted lilac maroon nimble olive painted quilted
    russet sandy turquoise umber violet winged zigzag bronze cedar dotted elastic folded grassy
    """
)

NOUNS = _words(
    """
    falcon harbor lantern meadow compass orchard violin glacier teapot dragon saddle pillar anchor beacon cactus
    daisy engine feather guitar hammer island jacket kettle ladder magnet needle oyster parrot quilt ribbon bridge
    canyon drum elbow fountain goblet helmet inkwell jigsaw kayak lobster mirror notebook oven pyramid quarry
    rocket sparrow tractor umbrella valley wagon xylophone yacht zebra bamboo candle dolphin envelope furnace
    gazelle hedgehog igloo jasmine koala lemon mosaic napkin otter pelican robot sandal turbine vase walrus acorn
    badger chisel domino easel
    """
)

VERBS = _words(
    """
    admire arrive bake balance begin believe borrow bounce brush carry chase choose climb collect combine count
    dance dare decide deliver describe dig dive dream earn enjoy escape explain explore fetch finish follow forget
    forgive gallop gather giggle greet grow guess hum hurry imagine improve invent invite juggle jump knit laugh
    learn listen melt mend mumble notice obey offer paddle pause plant ponder pour prefer pretend promise protect
    pull push reach recite refuse remember repair rescue return rinse scatter scratch search shiver shout sing
    sketch sleep slide smile sneeze spill squeeze stumble swallow sweep swim teach tickle tremble trust unlock
    unpack visit wait wander warn weave whisper whistle wonder write yawn
    """
)

FIRST_NAMES = _words(
    """
    Gloria Harvey Doris Martin Nancy Walter Brenda Kevin Sandra Curtis Donna Vincent Joyce Trevor Phyllis Gordon
    Marion Duncan Sylvia Leonard Audrey Bernard Cynthia Desmond Edith Franklin Glenda Howard Irene Jerome Kathryn
    Lionel Maureen Neville Opal Percy Quincy Roberta Stanley Theresa Ursula Wallace Yvonne Zachary Beverly
    Clifford Darlene Eugene Frances Gilbert Hilda Isabel
    """
)

LAST_NAMES = _words(
    """
    Ashworth Caldwell Dunmore Ellsworth Fairbanks Granger Hartwell Kendrick Langley Merriweather Northrup Oakley
    Pemberton Radcliffe Sheffield Thornton Underhill Vickers Wexford Yardley Atherton Bradshaw Crawford Donovan
    Eastwood Fletcher Goodwin Hollister Irvington Jennings Kirkland Lockwood Mansfield Norwood Osborne Prescott
    Quigley Rutherford Stanton Templeton Vaughan Whitaker Winslow Aldridge Bancroft Colburn Davenport Emerson
    Farnsworth Gallagher Hathaway Kingsley
    """
)

CITIES = _words(
    """
    Lisbon Oslo Nairobi Toronto Vienna Cairo Lima Prague Dublin Madrid Athens Seoul Havana Warsaw Berlin Sydney
    Boston Chicago Kyoto Helsinki Budapest Geneva Mumbai Santiago Seattle Denver Naples Hamburg Brussels
    Copenhagen Barcelona Istanbul Melbourne Montreal Munich Stockholm Tokyo Vancouver Zurich Amsterdam Bangkok
    Beirut Bogota Casablanca Dallas Dubai Florence Glasgow Houston Jakarta Krakow Manila Miami Milan Phoenix Porto
    Quito Reykjavik Rotterdam Salzburg Shanghai Tunis Valencia Venice
    """
)

PASTIMES = (
    "eat a sandwich",
    "fly a kite",
    "play chess",
    "read a newspaper",
    "feed the ducks",
    "drink hot chocolate",
    "sketch the boats",
    "listen to a brass band",
    "rent a bicycle",
    "watch the sunset",
    "buy roasted chestnuts",
    "ride the tram",
    "photograph the pigeons",
    "taste the cheese",
    "dance in the rain",
    "count the bridges",
)

SPOTS = (
    "by the old harbor",
    "in the botanical garden",
    "on the castle hill",
    "at the flea market",
    "beside the clock tower",
    "under the plane trees",
    "near the opera house",
    "at the end of the pier",
    "on the university steps",
    "behind the cathedral",
    "along the canal",
    "in the fish market",
)

SAYING_SUBJECTS = (
    "a patient river",
    "an honest clock",
    "a borrowed ladder",
    "the smallest lamp",
    "a quiet neighbor",
    "an empty bucket",
    "the oldest bridge",
    "a hungry fox",
    "the last apple",
    "a broken plate",
    "an early snow",
    "the tallest tree",
)

SAYING_VERBS = ("remembers", "outlives", "teaches", "forgives", "betrays", "follows", "carries", "envies")

SAYING_OBJECTS = (
    "the proudest stone",
    "a thousand winters",
    "every careless king",
    "the road it came by",
    "no one twice",
    "the hand that feeds it",
    "a borrowed coat",
    "the sound of rain",
    "its own shadow",
    "the bottom of the sea",
)


def pairs(rng: random.Random, first: Sequence[str], second: Sequence[str]) -> Iterator[str]:
    """Every pair once; a first word comes back only after all the others."""
    left, right = rng.sample(first, len(first)), rng.sample(second, len(second))
    for shift in range(len(right)):
        for index, word in enumerate(left):
            yield f"{word} {right[(index + shift) % len(right)]}"
