"""The words of the story world: names, animals, things, and settings whose parts fit together."""

GIRLS = """Mia Sarah Emily Mary Anne Grace Sally Eva Lily Anna Rosa Ella Nora Lucy Ruby Clara Ivy Maya Zoe Emma Sara Alice Hazel Jane Molly Daisy Amy Ada Nina
Tessa Leah Priya Yuki Fatima Ingrid Elsa Greta Olive Wren Beth Kate Sofia Luna Amina Noor Freya Maria""".split()
BOYS = """Tom John David James Bob Tim Billy Alex Ben Sam Max Leo Finn Jack Oscar Theo Hugo Noah Eli Adam Owen Luke Henry Felix Peter Daniel Omar Ravi Kenji
Mateo Anders Ivan Otto Milo Jonas Toby Will Carl Nico Amir Pablo Simon Hans Louis Arthur Emil Paul""".split()
PET_NAMES = """Biscuit Pip Pepper Button Clover Nutmeg Bramble Hazelnut Sunny Muffin Pebble Ginger Mango Cricket Poppy
Tully Patch Waffles Socks Juniper Fig Thistle Bean Maple Rusty Domino Whisper Acorn Dusty Plum""".split()
# Joined at random into names no list holds, so that names have to be copied rather than guessed.
NAME_STARTS = """Al Bel Bri Cal Cor Da Dre El Fa Fen Ga Hal Il Jo Ka Kel La Lo Mar Mel Mi Na Ne Or Pa Per Qui Ra Ren Ro Sa
Sel Ta Tor Ul Va Vi Wil Ya Zan Ze""".split()
NAME_MIDDLES = ["", "", "", "ba", "da", "de", "li", "lo", "ma", "mi", "na", "ra", "ri", "sa", "vi", "wa"]
# And, less often, names of any syllables at all: Spark, Quilloom.
ONSETS = """b bl br c ch cl cr d dr f fl fr g gl gr h j k kn l m n p ph pl pr qu r s sc sh sk sl sm sn sp spr st str sw t th tr tw
v w wh x y z""".split()
VOWELS = "a a a e e e i i i o o o u u ai ea ee oo ou ie y".split()
CODAS = [""] * 8 + "b ck d ff g k l ll m n n nd ng nk p r r rk rd rn rt s sh ss st t th x zz tt lt ld mp".split()
GIRL_ENDS = "la na ra mi sie lia nda ssa va tta lyn belle".split()
BOY_ENDS = "do n ko rin s vin to ris mund bert lo ric".split()

FAMILY_NAMES = """Finch Bell Brown Reed Hill Moss Potter Wood Lane Green Fields Barley Marsh Stone Rivers Cook Page Winter
Garland Berry""".split()
TRAITS = "wise funny dreamy gentle bold calm eager honest cautious sleepy silly helpful curious kind quiet cheerful clever gentle brave careful busy friendly thoughtful patient shy lively polite".split()
HOBBIES = [
    "draw pictures of birds", "climb trees", "collect smooth stones", "sing", "build little boats out of bark",
    "read stories about the stars", "bake", "count the clouds", "help in the garden", "ask questions", "whistle old songs",
    "run as fast as the wind", "look for bugs under stones", "tell jokes", "paint", "watch the rain", "make up riddles",
    "fix broken things", "feed the birds", "dance when nobody was looking", "listen to stories", "explore",
]
# Nouns a child or a small animal can own, carry and lose.
TOYS = "kite ball boat drum doll train top bear whistle puppet wagon balloon robot flute puzzle yo-yo hoop".split()
CLOTHES = "hat scarf coat cap sweater backpack ribbon mitten".split()
KEEPSAKES = "key button shell feather stone ring bell marble coin book box cup compass medal pencil watch crystal map".split()
TOOLS = "basket lantern umbrella bucket rope blanket spoon brush".split()
COLORS = "red blue green yellow purple orange white black brown silver golden pink gray".split()
LOOKS = "small big old new shiny little round striped spotted wooden pretty tiny plain bright".split()
NOT_WOODEN = set("kite balloon bear hat scarf coat cap sweater backpack ribbon mitten shell feather stone coin book rope crystal map compass medal watch puzzle "
                 "blanket umbrella".split())
FOODS = ["loaf of bread", "jar of honey", "bag of nuts", "piece of cheese", "bowl of soup", "bottle of milk",
         "apple pie", "box of plums", "pot of jam", "lemon cake", "bunch of carrots", "basket of eggs", "bag of pears",
         "jar of pickles", "plum cake", "sack of flour"]
TREATS = ["blueberry pie", "honey cake", "plate of cookies", "bowl of cherries", "cheese tart", "apple cake",
          "loaf of sweet bread", "bowl of nuts", "cherry pie", "pot of porridge"]

# A place to live: where it is, where one goes, and where a thing (or a child) can be hidden.
SETTINGS = {
    "sea": {
        "homes": ["in a small house by the sea", "in a white cottage near the beach", "in a fishing village", "in a tall house by the harbor"],
        "places": ["the beach", "the harbor", "the lighthouse", "the fish market"],
        "spots": ["behind the boat shed", "under the old pier", "between the two big rocks", "in the tall grass on the dunes",
                  "next to the lighthouse door", "under the upside-down rowboat", "behind the pile of nets"],
        "sounds": ["The waves rolled in and out.", "Seagulls called over the water.", "The air smelled of salt.",
                   "Far out on the water, a ship blew its horn."],
        "way": "along the shore",
    },
    "forest": {
        "homes": ["in a little cabin at the edge of the forest", "in a cozy house among the pine trees",
                  "in a hut near the old woods", "in a small house at the end of a green valley"],
        "places": ["the stream", "the clearing", "the old mill", "the pond"],
        "spots": ["under the big oak tree", "behind the mossy log", "beside the stream", "inside the hollow tree",
                  "among the ferns", "behind the woodpile", "under the blackberry bush"],
        "sounds": ["A woodpecker knocked on a tree.", "The leaves whispered in the wind.", "Sunlight fell between the branches.",
                   "The ground was soft with pine needles."],
        "way": "through the trees",
    },
    "town": {
        "homes": ["in a quiet town", "in a tall brick house in the middle of town", "in a busy city",
                  "in a little apartment above a bakery"],
        "places": ["the park", "the library", "the market", "the playground"],
        "spots": ["under the bench in the park", "behind the library", "next to the fountain", "by the bakery door",
                  "under the slide", "behind the bus stop", "on the steps of the museum"],
        "sounds": ["A bicycle bell rang down the street.", "The smell of warm bread drifted from the bakery.",
                   "Pigeons walked up and down the square.", "The clock on the tower struck ten."],
        "way": "down the street",
    },
    "farm": {
        "homes": ["on a farm with a red barn", "on a small farm", "in a farmhouse on a hill", "on an old farm beside a river"],
        "places": ["the barn", "the orchard", "the river", "the big field"],
        "spots": ["behind the barn", "in the hay", "next to the well", "under the apple tree", "by the chicken coop",
                  "behind the tractor", "in the pumpkin patch"],
        "sounds": ["The rooster crowed twice.", "Bees hummed in the clover.", "The cows chewed slowly and looked on.",
                   "A warm wind moved the wheat."],
        "way": "across the field",
    },
    "hills": {
        "homes": ["in a village in the hills", "in a stone house in the mountains", "in a village with only nine houses",
                  "in a cottage beside a blue lake"],
        "places": ["the lake", "the meadow", "the village square", "the windmill"],
        "spots": ["behind the windmill", "under the stone bridge", "by the village well", "near the school steps",
                  "among the sheep in the meadow", "behind the garden wall", "under the willow tree"],
        "sounds": ["Sheep bells rang on the hillside.", "A hawk turned slow circles in the sky.", "The grass bent in the breeze.",
                   "Smoke rose from the chimneys."],
        "way": "over the hill",
    },
}
# Heard or seen anywhere.
ANY_SOUNDS = [
    "A butterfly landed on {h}'s nose and flew away again.", "A soft wind was blowing.", "The clouds looked like [sheep|ships|castles|feathers].",
    "Somewhere a bird was singing.", "The sun came out for a moment.", "The shadows were getting longer.", "A leaf came down and landed at {h}'s feet.",
    "It smelled like rain.", "The sky was as blue as a [plum|lake].", "{h} stopped to [look at a beetle|drink some water|catch {h.their} breath].",
    "Two [butterflies|sparrows|bees] chased each other through the air.", "A cloud covered the sun, and it grew cool.",
]
FOREST_ANIMALS = """fox rabbit hedgehog squirrel mouse badger owl bear deer otter frog beaver mole raccoon turtle duck cat
wolf dragon bunny robin""".split()
# Animals that appear beside people in each setting, and talk when the story lets them.
LOCAL_ANIMALS = {
    "sea": "seagull crab seal turtle pelican".split(),
    "forest": "fox rabbit hedgehog squirrel owl deer".split(),
    "town": "pigeon cat squirrel sparrow dog".split(),
    "farm": "duck goat lamb pony goose cat".split(),
    "hills": "goat lamb crow rabbit donkey".split(),
}
PETS = {"dog": "wagged {p.their} tail", "puppy": "wagged {p.their} little tail", "cat": "purred softly", "kitten": "curled up and purred",
        "rabbit": "wiggled {p.their} nose", "parrot": "flapped {p.their} wings", "goat": "gave a happy bleat"}
SEEDS = {
    "sunflower": "a tall sunflower with a face as round as the sun", "pumpkin": "a fat orange pumpkin",
    "bean": "a bean plant that climbed up to the roof", "tomato": "a bush full of red tomatoes",
    "strawberry": "a plant with sweet red strawberries", "rose": "a rose that smelled like summer",
    "watermelon": "a watermelon as big as a drum", "tulip": "a bright tulip",
}
JOBS = ["baker", "farmer", "fisherman", "gardener", "tailor", "postman", "shopkeeper", "painter", "miller", "carpenter",
        "librarian", "beekeeper"]
MORALS = {
    "kind": ["a little kindness comes back to you", "being kind is never a waste of time", "even a small kindness can mean a lot"],
    "honest": ["telling the truth is the best way to feel light again", "a true word is worth more than a vase",
               "it is brave to say you are sorry"],
    "give_back": ["it feels good to give things back", "an honest heart makes many friends",
                  "finding is good, but giving back is better"],
    "patient": ["good things take time", "waiting is easier when you have something to care for",
                "slow and steady work is worth it"],
    "brave": ["being brave does not mean you are never afraid", "a fear gets smaller when you look at it",
              "it is easier to be brave with a friend"],
    "share": ["sharing makes everything twice as nice", "a thing is more fun when you share it",
              "a friend is worth more than any toy"],
    "remember": ["it helps to stop and think", "it is good to remember where you put things",
                 "a calm head finds more than quick feet"],
    "careful": ["it helps to stop and think", "it is good to do one thing at a time", "a song can help you remember"],
    "clever": ["a good question can open any door", "it pays to keep your eyes open", "looking closely is a kind of magic", "the answer is often close by"],
    "unselfish": ["the best wishes are the ones for others", "being happy for a friend is a gift too",
                  "you can have enough without having everything"],
    "together": ["many hands make the work light", "everything is easier together", "friends can do almost anything together"],
}
