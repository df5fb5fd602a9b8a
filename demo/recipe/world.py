"""The closed world of the stories: who lives there, where, and with what."""

from collections import namedtuple

Animal = namedtuple("Animal", "kind gifts")  # gifts: what it can do for a friend in trouble
Place = namedtuple("Place", "home at spots")  # "near the river", "by the river", hiding spots
Thing = namedtuple("Thing", "noun adjectives use love part")  # part: what of it can break, or None

ANIMALS = [
    Animal("fox", "run"), Animal("rabbit", "dig run"), Animal("mouse", "small"),
    Animal("owl", "fly"), Animal("bear", "strong"), Animal("hedgehog", "small"),
    Animal("squirrel", "climb"), Animal("frog", "swim"), Animal("duck", "swim"),
    Animal("turtle", "swim"), Animal("badger", "dig strong"), Animal("deer", "run"),
    Animal("otter", "swim"), Animal("beaver", "swim build"), Animal("cat", "climb"),
    Animal("dog", "run dig"), Animal("hen", "small"), Animal("goat", "strong climb"),
    Animal("lamb", "run"), Animal("pony", "strong run"), Animal("robin", "fly"),
    Animal("sparrow", "fly"), Animal("crow", "fly"), Animal("mole", "dig"),
    Animal("bat", "fly"), Animal("snail", "small"), Animal("ant", "small build"),
    Animal("bee", "fly"), Animal("goose", "swim"), Animal("pig", "dig"),
    Animal("donkey", "strong"), Animal("cow", "strong"), Animal("wolf", "run strong"),
    Animal("raccoon", "climb"), Animal("lizard", "climb small"), Animal("swan", "swim fly"),
    Animal("kitten", "climb small"), Animal("puppy", "dig"), Animal("lion", "strong"),
    Animal("elephant", "strong"), Animal("monkey", "climb"), Animal("penguin", "swim"),
]
CHILDREN = [Animal("girl", "run"), Animal("boy", "run")]
BY_KIND = {a.kind: a for a in ANIMALS + CHILDREN}

GIRLS = ("Mia Lily Olive Rosie Poppy Daisy Hazel Ruby Willow Nell Ivy Clara Tilly Bella Luna Maya Nora Ella Ada Fern "
         "Pearl Holly June Greta Wren Zoe Anna Ida Molly Sadie Lotta Emma Stella Tess Vera Juno Kiki Dora Ana Lena"
         ).split()
BOYS = ("Pip Tom Oscar Max Ben Milo Finn Leo Theo Sam Hugo Otis Jack Felix Toby Rufus Bruno Gus Ned Oliver Archie "
        "Barney Jasper Kit Louis Monty Noah Ollie Percy Ravi Rolo Sandy Teddy Walter Basil Ezra Ivan Jonas Emil Dan"
        ).split()

TRAITS = ("small kind curious shy clever cheerful gentle quiet brave young patient busy friendly careful merry sleepy "
          "thoughtful hopeful").split()

PLACES = [
    Place("at the edge of the forest", "in the forest",
          ["under a pile of leaves", "inside a hollow log", "behind a mossy rock", "between the roots of an old oak",
           "under a fern"]),
    Place("near the river", "by the river",
          ["under the bridge", "among the reeds", "behind a flat stone", "under an old rowing boat",
           "between two willow roots"]),
    Place("in a small village", "in the village",
          ["behind the bakery", "under a bench", "beside the well", "under the market cart", "behind the blue gate"]),
    Place("on a quiet farm", "on the farm",
          ["under the hay", "behind the barn", "inside an empty bucket", "beside the water trough",
           "under the old tractor"]),
    Place("beside a green meadow", "in the meadow",
          ["in the tall grass", "under a patch of clover", "beside an old fence", "behind a molehill",
           "under a buttercup bush"]),
    Place("close to the sea", "on the beach",
          ["under the seaweed", "behind a sand dune", "in a rock pool", "under an upturned boat",
           "beside a broken crab trap"]),
    Place("at the foot of a mountain", "on the mountain",
          ["in a small cave", "behind a grey boulder", "under a pine tree", "beside the waterfall",
           "on a narrow ledge"]),
    Place("beside a round pond", "by the pond",
          ["among the lilies", "under a wet log", "behind the bulrushes", "beneath a mossy step",
           "under a willow branch"]),
    Place("on top of a windy hill", "on the hill",
          ["behind a thorn bush", "under a stone wall", "in a rabbit hole", "beside the old windmill",
           "under a heap of straw"]),
    Place("in a sunny valley", "in the valley",
          ["under a wild rose", "beside the stream", "behind a fallen tree", "in a bed of moss",
           "under a pile of twigs"]),
    Place("in an old apple orchard", "in the orchard",
          ["under a basket of apples", "behind the crooked tree", "in the long grass", "beside the ladder",
           "under the beehive"]),
    Place("behind a garden wall", "in the garden",
          ["under a cabbage leaf", "behind the watering can", "inside a flower pot", "beside the bean poles",
           "under the rose bush"]),
    Place("on the shore of a wide lake", "by the lake",
          ["under the wooden pier", "among the reeds", "behind a heap of stones", "inside an old boat",
           "under a fishing net"]),
    Place("near an old mill", "at the mill",
          ["behind the flour sacks", "under the water wheel", "beside the millstone", "under the back stairs",
           "inside an empty barrel"]),
    Place("on a little island", "on the island",
          ["under a palm leaf", "behind a pile of driftwood", "in a hollow tree", "beside a warm rock",
           "under a heap of shells"]),
    Place("in a snowy land", "in the snow",
          ["under a snowy branch", "behind a block of ice", "inside an empty sledge", "beside the frozen stream",
           "under a small snowdrift"]),
]

# use: light, sound, reach, warm, food, hold, shine, float, roll, guide, page, cover, play, dig, grow
THINGS = [
    Thing("lantern", ["brass", "little", "old"], "light", "It glowed like a small moon.", "handle"),
    Thing("kite", ["red", "blue", "paper"], "play", "It could fly higher than the tallest tree.", "tail"),
    Thing("drum", ["round", "painted", "little"], "sound", "It sounded like happy footsteps.", "strap"),
    Thing("bell", ["silver", "small", "shiny"], "sound", "It rang as clear as morning.", "handle"),
    Thing("scarf", ["red", "woolly", "striped"], "warm", "It was as warm as a hug.", "fringe"),
    Thing("boat", ["wooden", "little", "white"], "float", "It rocked on the water like a cradle.", "sail"),
    Thing("rope", ["long", "strong", "thick"], "reach", "It was strong enough for any job.", None),
    Thing("key", ["golden", "tiny", "old"], "shine", "It was a gift from Grandmother.", None),
    Thing("map", ["old", "yellow", "folded"], "guide", "It showed every path and every stream.", "corner"),
    Thing("basket", ["round", "straw", "big"], "hold", "It always smelled of apples.", "handle"),
    Thing("hat", ["green", "tall", "funny"], "wear", "It made everyone smile.", "brim"),
    Thing("blanket", ["soft", "blue", "patchwork"], "warm", "It smelled of lavender.", "corner"),
    Thing("book", ["thick", "old", "blue"], "page", "It was full of stories of the sea.", "cover"),
    Thing("whistle", ["tin", "little", "silver"], "sound", "It could be heard three hills away.", None),
    Thing("umbrella", ["yellow", "big", "spotted"], "cover", "It looked like a flower in the rain.", "handle"),
    Thing("ball", ["red", "bouncy", "striped"], "play", "It bounced higher than any other.", None),
    Thing("flute", ["wooden", "thin", "silver"], "sound", "It sang like a bird at dawn.", "mouthpiece"),
    Thing("cake", ["honey", "round", "sweet"], "food", "It smelled of honey and nuts.", None),
    Thing("mirror", ["round", "little", "shiny"], "shine", "It caught the sun like a star.", "frame"),
    Thing("coin", ["gold", "shiny", "old"], "shine", "It had a tiny ship on one side.", None),
    Thing("shell", ["pink", "curly", "white"], "shine", "It held the sound of the sea.", None),
    Thing("sled", ["red", "fast", "wooden"], "roll", "It was the fastest on the hill.", "runner"),
    Thing("wagon", ["little", "green", "wooden"], "roll", "Its wheels sang as they turned.", "wheel"),
    Thing("ladder", ["wooden", "tall", "old"], "reach", "It reached all the way to the roof.", "rung"),
    Thing("bucket", ["tin", "blue", "big"], "hold", "It never spilled a drop.", "handle"),
    Thing("compass", ["brass", "small", "round"], "guide", "It always knew where north was.", "needle"),
    Thing("candle", ["tall", "white", "little"], "light", "Its flame danced in the dark.", None),
    Thing("trumpet", ["shiny", "golden", "loud"], "sound", "It could wake the whole valley.", "mouthpiece"),
    Thing("violin", ["brown", "small", "old"], "sound", "It could laugh and cry.", "string"),
    Thing("music box", ["tiny", "silver", "pretty"], "sound", "It played one slow, sweet tune.", "lid"),
    Thing("pie", ["apple", "warm", "berry"], "food", "It was still warm from the oven.", None),
    Thing("apple", ["red", "big", "shiny"], "food", "It was the sweetest of the year.", None),
    Thing("pumpkin", ["big", "orange", "round"], "food", "It was as round as the full moon.", None),
    Thing("teapot", ["blue", "round", "china"], "hold", "It kept the tea warm all day.", "spout"),
    Thing("cup", ["white", "little", "painted"], "hold", "It had a tiny flower on its side.", "handle"),
    Thing("jar", ["glass", "round", "tall"], "hold", "It could hold a hundred berries.", "lid"),
    Thing("ring", ["silver", "thin", "tiny"], "shine", "It sparkled like morning dew.", None),
    Thing("crown", ["paper", "golden", "little"], "shine", "It made anyone feel like a king.", "point"),
    Thing("button", ["brass", "shiny", "round"], "shine", "It came from a sailor's coat.", None),
    Thing("marble", ["glass", "green", "round"], "shine", "It had a tiny rainbow inside.", None),
    Thing("raft", ["wooden", "wide", "flat"], "float", "It floated as lightly as a leaf.", "mast"),
    Thing("spyglass", ["brass", "long", "old"], "guide", "It made far things look near.", "lens"),
    Thing("letter", ["long", "folded", "blue"], "page", "It came from a friend far away.", None),
    Thing("paintbrush", ["thin", "soft", "wooden"], "page", "It could paint any colour of the sky.", "handle"),
    Thing("doll", ["rag", "little", "old"], "play", "It had two blue buttons for eyes.", "arm"),
    Thing("puppet", ["funny", "wooden", "little"], "play", "It could dance and bow.", "string"),
    Thing("broom", ["straw", "long", "old"], "sweep", "It swept as quickly as the wind.", "handle"),
    Thing("shovel", ["small", "strong", "iron"], "dig", "It could dig through any soil.", "handle"),
    Thing("hammer", ["little", "heavy", "iron"], "mend", "It had built half the houses around.", "handle"),
    Thing("watering can", ["green", "tin", "little"], "water", "Its rain was soft and cool.", "spout"),
    Thing("clock", ["wooden", "little", "old"], "time", "It ticked like a tiny heart.", "hand"),
    Thing("feather", ["white", "long", "soft"], "shine", "It was as light as a breath.", None),
    Thing("acorn", ["brown", "tiny", "smooth"], "grow", "A whole tree was asleep inside it.", None),
    Thing("seed", ["tiny", "striped", "round"], "grow", "Nobody knew what would grow from it.", None),
    Thing("pillow", ["soft", "white", "big"], "warm", "It was as soft as a cloud.", "corner"),
    Thing("mitten", ["red", "woolly", "thick"], "wear", "It was knitted with love.", "thumb"),
]
BY_NOUN = {t.noun: t for t in THINGS}

TIMES = ["One morning", "One day", "One sunny afternoon", "One windy day", "One day in spring", "One cool evening",
         "One day in autumn", "Early one morning"]
FEELINGS = ["happy", "glad", "thankful", "proud", "joyful", "warm inside", "content", "very happy"]
