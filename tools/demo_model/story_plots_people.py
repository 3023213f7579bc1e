"""Plots about people and animals: errands, fears, contests, storms, mysteries. Each sets `summary` and `moral`."""

import story_words as words


def errand(s):
    foods = s.sample(words.FOODS, 3)
    given = s.pick(foods)
    kept = [food for food in foods if food != given]
    n = s.neighbor()
    animal = s.helper_animal()
    articled = [f"{'an' if food[0] in 'aeiou' else 'a'} {food}" for food in foods]
    s.cast |= dict(n=n, x=animal, all=s.listed(articled), given=given, given_again=s.recall(given, "O"),
                   kept_again=s.recall(s.listed([f"the {food}" for food in kept]), "L"))
    s.say("{day}, {k} packed a basket with {all}. \"Take this to {n},\" {k.they} said. \"{n.they_cap} is [sick in bed|not feeling well] and [needs something good|would like some company].\"",
          "\"Can you help me?\" asked {k} {day_low}. \"{n} has a cold. Please take {n.them} this basket. There is {all} in it.\"")
    s.say("{h} took the basket and set off {way}. {h.they} [hummed a song|walked carefully] so that nothing would [fall out|spill].",
          "So {h} carried the basket {way}[, one step after another|].")
    s.atmosphere()
    s.paragraph()
    s.say("[Halfway there|After a while], {h.they} met a thin little {x.kind} named {x}. \"I have not eaten [since yesterday|all day],\" said {x} [sadly|in a weak voice].",
          "Beside the path sat a hungry {x.kind}. \"My name is {x},\" it said, \"and my belly is empty.\"")
    s.say("{h} looked into the basket. [It was not {h.theirs} to give|{h.they} thought about it]. But {x} looked so hungry that {h.they} gave {x.them} the {given}.",
          "{h} felt sorry for {x.them}. \"Here, {x.again},\" said {h}. \"You can have the {given}.\"")
    s.say("{x} ate [every bit of it|it all up]. \"Thank you,\" {x.they} said. \"What is your name?\" \"My name is {h.again},\" said {h}.",
          "\"Thank you, thank you!\" said {x}. \"I will not forget this. Who are you?\" \"I am {h.again},\" said {h}.")
    s.paragraph()
    s.say("[At last|Soon] {h} knocked on the door of {n}'s house. \"Come in, {h.again}!\" called {n}. \"What have you brought me?\"",
          "{n} was [sitting in a big chair|lying in bed] under a thick blanket. \"Hello, {h.again},\" said {n}. \"What is in the basket?\"")
    s.say("\"I have {kept_again},\" said {h}. \"There was also {given_art}, but I gave {given_it} to {x.again}, who was hungry.\"",
          "\"{k.call} sent you {kept_again},\" said {h}. \"I am sorry, but I gave the {given_again} to a hungry {x.kind} named {x.again}.\"",
          given_art=f"{'an' if given[0] in 'aeiou' else 'a'} {s.recall(given, 'O')}", given_it="it")
    s.say("{n} [smiled|laughed]. \"You did the right thing,\" {n.they} said. \"I have more than enough. Sit down and [eat with me|tell me about it].\"",
          "\"That was kind of you,\" said {n}. \"I already feel better.\" And they shared a little of the food.")
    s.say("On the way home it began to get dark, and {h} [took a wrong turn|was not sure of the way]. Then somebody called, \"This way, {h.again}!\" It was {x.again}, and {x.they} led {h.them} safely home.",
          "When {h} walked home, {x.again} was waiting beside the path. {x.they} walked with {h.them} all the way to the door.")
    s.summary = f"I took {s.recall(s.listed([f'the {food}' for food in kept]), 'L')} to {n.again}, and I met a {animal.kind} named {animal.again}"
    s.moral = "kind"


TROUBLES = [
    ("rope", "had fallen into a deep hole", "{h} let one end of the {o.again} down into the hole. \"Hold on tight!\" {h.they} called, and pulled and pulled.", "the hole"),
    ("blanket", "was shaking from the cold", "{h} wrapped {x.them} in the {o.again} and held {x.them} close until {x.they} was warm.", "the cold"),
    ("bucket", "was stuck on a small island in the middle of a pond", "{h} pushed the {o.again} out on the water like a little boat. {x} jumped in, and {h} pulled it back with a long stick.", "the pond"),
    ("umbrella", "sat on a high branch and could not get down", "{h} opened the {o.again} and held it upside down under the branch. \"Jump!\" {h.they} called, and {x} jumped right into it.", "the tree"),
    ("scarf", "had a cut on one foot", "{h} took off the {o.again} and tied it gently around the foot.", "the pain"),
    ("basket", "was too tired to walk any farther", "{h} put {x.them} gently into the {o.again} and carried {x.them} all the way home.", "the long road"),
]


def help_animal(s):
    noun, trouble, fix, _ = s.pick(TROUBLES)
    o = s.thing([noun])
    x = s.helper_animal()
    spot = s.spots(1)[0]
    s.cast |= dict(o=o, x=x, spot=spot, trouble=trouble, spot_again=s.recall(spot, "P"))
    s.say("{h} had {o.a}. [Nobody knew why|Some people laughed], but {h.they} took it [along|with {h.them}] wherever {h.they} went. \"You never know when you will need it,\" {h.they} always said.",
          "Before {h} left the house {day_low}, {k} gave {h.them} {o.a}. \"Take it with you,\" said {k}. \"You might need it.\"")
    s.say("{h.they} was walking {way} when {h.they} heard a [small|soft|sad] voice. \"Help! Please help me!\" The voice came from somewhere close by.",
          "{h.they} was on the way to {place} when {h.they} heard somebody crying. \"Who is there?\" asked {h}.")
    s.say("{spot} was a little {x.kind}. {x.they} {trouble}.", "{h} looked around. There, {spot}, was a small {x.kind}. {x.they} {trouble}.")
    s.say("\"Do not be afraid,\" said {h}. \"What is your name?\" \"I am {x},\" said the {x.kind}.", "\"My name is {x},\" said the {x.kind}. \"I have been here all [night|day].\"")
    s.paragraph()
    s.say("{h} [thought hard|thought about what to do]. Then {h.they} remembered {o.the_again}.", "\"I will help you, {x.again},\" said {h}. \"Wait, I have {o.a_again}!\"")
    s.say(fix)
    s.say("\"[You did it|It worked]!\" said {x}. \"Thank you! I will never forget you.\"", "[Soon|After a little while], {x} felt much better. \"Thank you,\" {x.they} said. \"You are my friend now.\"")
    s.paragraph()
    s.say("[A few days later|The next week], {h} was playing near {place} when a thick fog came. {h.they} could not see {h.their} own feet, and {h.they} was lost.",
          "Some days later, {h} went too far from home. The sun went down, and all the paths looked the same.")
    s.say("\"Hello?\" called {h}. \"Is anybody there?\" Then a voice {h.they} knew said, \"I am here!\" It was {x.again}, the little {x.kind}.",
          "{h} sat down and did not know what to do. Then {h.they} heard small steps. It was the {x.kind} that {h.they} had found {spot_again}. It was {x.again}!")
    s.say("\"You helped me, and now I will help you,\" said {x.again}. \"Follow me.\" {x.they_cap} led {h} home, step by step.",
          "{x.again} knew the way, even in the dark. [Together they|They] walked and talked, and soon {h} could see the light in {h.their} own window.")
    s.say("{k} was standing at the door. \"I was so worried!\" {k.they} said. \"This is {x.again},\" said {h}. \"{x.they_cap} brought me home.\"",
          "At the door, {h} gave {x.them} a hug. \"Come and see me whenever you like, {x.again},\" {h.they} said.")
    s.summary = f"I helped a {x.kind} named {x.again} with {o.the_again}, and {x.again} helped me too"
    s.moral = "kind"


FEARS = [
    ("the dark", "When the lamp went out at night, {h.they} pulled the blanket over {h.their} head.", "the lamp went out", "in the dark"),
    ("thunder", "When it rumbled in the sky, {h.they} hid under the table.", "there was a loud clap of thunder", "in the storm"),
    ("deep water", "When the others swam, {h.they} stayed on the bank.", "the water came up to {h.their} knees", "in the water"),
    ("high places", "When the others climbed up, {h.they} stayed on the ground.", "{h.they} looked down from the first branch", "up high"),
    ("the attic", "When {h.they} had to walk past its door, {h.they} ran.", "the old stairs creaked", "in the attic"),
    ("the big bridge", "When {h.they} had to cross it, {h.they} shut {h.their} eyes.", "the boards shook under {h.their} feet", "on the bridge"),
]
REMEDIES = ["count to ten", "sing a silly song", "think of something that smells good", "breathe in and out slowly",
            "squeeze a small stone", "name five things that are blue", "say a rhyme", "hum like a bee"]


def overcome_fear(s):
    fear, habit, moment, where = s.pick([item for item in FEARS if not s.animals or item[0] not in ("the attic",)])
    remedy = s.pick(REMEDIES)
    f = s.friend()
    little = s.friend()
    s.cast |= dict(f=f, l=little, fear=fear, where=where, remedy=remedy, remedy_again=s.recall(remedy), fear_again=s.recall(fear))
    s.say("{h} was brave about many things, but {h.they} was afraid of {fear}.", "There was only one thing that {h} did not like. {h.they} was afraid of {fear}.")
    s.say(habit)
    s.say("{day}, {h.their} friend {f} noticed it. \"Are you afraid of {fear_again}?\" asked {f}. {h} looked away and nodded.",
          "{day}, {h} told {f}, a {f.kind} who was {h.their} best friend. \"Please do not laugh,\" said {h}. \"I am afraid of {fear_again}.\"")
    s.paragraph()
    s.say("{f} did not laugh. \"I used to be afraid too,\" said {f}. \"Do you want to know a trick? When you are scared, {remedy}.\"",
          "\"That is nothing to be ashamed of,\" said {f}. \"{k_call} told me a trick once. You just have to {remedy}.\"", k_call=s.pick(["My grandmother", "My uncle", "An old sailor", "My big sister"]))
    s.say("\"Does that really work?\" asked {h}. \"Try it,\" said {f}.", "{h} was not sure. But {h.they} promised to try.")
    s.paragraph()
    s.say(f"That [evening|night], {moment}. {{h}}'s heart [beat fast|went boom, boom, boom]." if where != "in the water" else f"So they went to the water together. When {moment}, {{h}}'s heart [beat fast|went boom, boom, boom].")
    s.say("{h.they} wanted to run away. Then {h.they} remembered what {f.again} had said. \"I have to {remedy_again},\" {h.they} told {h.themself}.",
          "\"I will {remedy_again},\" whispered {h}, \"just like {f.again} said.\"")
    s.say("{h.they} tried it once, and then again. Slowly {h.their} heart grew quiet. It was not so bad {where} after all.",
          "And it worked! Little by little, the fear became smaller, until it was no bigger than a [pea|mouse|button].")
    s.say("The next day, {h} ran to {f}. \"It worked!\" {h.they} said. \"I was not afraid of {fear_again} anymore.\"",
          "\"I did it, {f.again}!\" {h.they} called the next morning. \"I was {where}, and I was all right.\"")
    s.paragraph()
    s.say("[Some weeks|A month] later, {h} met a little {l.kind} named {l}, who was crying. \"I am afraid of {fear_again},\" said {l}.",
          "Not long after that, a small {l.kind} named {l} came to visit. {l} was afraid of {fear_again} too.")
    s.say("{h} [sat down next to {l.them}|smiled]. \"I know a trick, {l.again},\" {h.they} said. \"When you are scared, {remedy_again}.\"",
          "\"So was I,\" said {h}. \"But I learned something from {f.again}. You have to {remedy_again}. Come, {l.again}, we will do it together.\"")
    s.summary = f"I taught {little.again} to {s.recall(remedy)}, just as {f.again} taught me"
    s.moral = "brave"


CONTESTS = [
    ("boat race", "boat", "sailed {h.their} boat across the water every day", "mast"),
    ("kite contest", "kite", "practiced with the kite in the wind every day", "string"),
    ("wagon race", "wagon", "rode down the hill every day", "wheel"),
    ("drum contest", "drum", "played until everybody's ears hurt", "stick"),
    ("puppet show contest", "puppet", "practiced the show every day", "string"),
]


def contest(s):
    event, noun, practice, part = s.pick(CONTESTS)
    o = s.thing([noun])
    r = s.friend()
    prize = s.thing(["cup", "bell", "ribbon", "hat", "flag"], True)
    s.cast |= dict(o=o, r=r, event=event, part=part, prize=prize, event_again=s.recall(event))
    s.say("Every year there was a {event} at {place}, and {day_low} {h} decided to [enter it|take part].", "{day}, {h} heard some big news. There would be a {event} at {place}!")
    s.say("{h.they} built {o.a} with {k}'s help. It took [a week|many days].", "{h.they} had {o.a}, and {h.they} hoped that it would be good enough.")
    s.say(f"{{h}} {practice}. \"The winner gets {{prize.a}},\" said {{k}}. \"But the most important thing is to have fun.\"",
          f"The winner would get {{prize.a}}. {{h}} wanted it very much, so {{h.they}} {practice}.")
    s.paragraph()
    s.say("On the day of the {event_again}, {h} saw {r}, a {r.kind} who [had won the year before|was very good at it]. But {r} was sitting on the ground and crying.",
          "When the day came, everybody was there. Next to {h} stood {r}, a {r.kind} with a {o.noun} too. But {r} looked [very sad|ready to cry].")
    s.say("\"What is wrong, {r.again}?\" asked {h}. \"My {part} is broken,\" said {r}, \"and it starts in ten minutes. I can not be in the {event_again}.\"",
          "\"Look,\" said {r}, \"my {part} broke on the way. Now I can not take part.\"")
    s.say("{h} thought about it. If {r} was not in it, it would be easier to win. But that did not feel right.", "{h} knew that {r} was [very good|the best]. \"If I help, I may lose,\" {h.they} thought. But {h.they} could not walk away.")
    s.say("\"I have an extra {part},\" said {h}. \"Here, take it.\" Together they fixed {r}'s {o.noun} just in time.", "\"Wait, {r.again},\" said {h}. \"I brought a second {part}. You can have it.\"")
    s.paragraph()
    if s.chance(0.5):
        s.say("Then it began. [Everybody cheered.|The crowd clapped.] {h} did very well with {o.the_again}, but {r} did a tiny bit better. {r.again} won!",
              "The {event_again} began, and it was very close. In the end {r.again} was first, and {h.again} was second.")
        s.say("{r} held up {prize.the_again}. \"I could not have done it alone,\" {r.they} said. \"{h.again} gave me {h.their} extra {part}. We should share this.\"",
              "When {r} got {prize.the_again}, {r.they} walked over to {h}. \"This belongs to both of us,\" {r.they} said.")
        s.say("So {prize.the_again} stayed with {r.again} for half of the year and with {h.again} for the other half.", "From that day on, {h} and {r} were [the best of friends|good friends], and the next year they [practiced together|built a new {o.noun} together].")
        s.summary = f"I was second in the {s.recall(event)}, but I made a friend named {r.again}"
    else:
        s.say("Then it began. [Everybody cheered.|The crowd clapped.] It was very close, but at the end {h} and {o.the_again} were first!",
              "The {event_again} began, and {h} did {h.their} very best. When it was over, somebody called, \"The winner is {h.again}!\"")
        s.say("{r} was the first to shake {h.their} hand. \"You earned {prize.the_again},\" said {r}. \"You helped me, and you still won.\"",
              "{h} got {prize.the_again}, and {r.again} clapped the loudest of all.")
        s.say("\"Let us build something together next year, {r.again},\" said {h}. And that is what they did.", "{h} hung {prize.the_again} over {h.their} bed. But {h.they} was even happier about {h.their} new friend, {r.again}.")
        s.summary = f"I won {prize.the_again} in the {s.recall(event)}, and {r.again} is my friend now"
    s.moral = "share"


def storm(s):
    f, g = s.friend(), s.friend()
    supplies = s.sample(["a lantern", "some blankets", "a pot of soup", "dry wood", "a loaf of bread", "a deck of cards", "a guitar"], 2)
    s.cast |= dict(f=f, g=g, a=supplies[0], b=supplies[1], a_again=s.recall(supplies[0], "O"), b_again=s.recall(supplies[1], "O"))
    s.say("{day}, the sky turned [dark|black]. \"A storm is coming,\" said {k}. \"We must get ready.\"", "{day}, the wind grew stronger and stronger. Dark clouds rolled in, and {k} closed all the windows.")
    s.say("{h} carried [wood|water] into the house. Soon rain was [beating|drumming] on the roof and the wind [howled|shook the door].", "{h} helped to bring everything inside. Then the rain began to fall, harder than {h.they} had ever seen.")
    s.say("In the middle of the storm there was a knock at the door. It was {f}, a {f.kind} who lived [nearby|down the road]. \"The wind took our roof!\" {f.they} said. But {f.they} had brought {a}.",
          "Then somebody knocked. {h} opened the door, and there stood a wet {f.kind} named {f}, holding {a}. \"Our house is full of water,\" said {f}. \"May I come in?\"")
    s.say("\"Come in, {f.again}, come in!\" said {h}.", "\"Of course, {f.again},\" said {h}, and pulled {f.them} inside.")
    s.paragraph()
    s.say("A little later there was another knock. It was {g}, a {g.kind} with {b} under one arm. \"My fire went out,\" {g.they} said, and {g.their} teeth chattered.",
          "Before long, somebody else knocked. \"I am cold and all alone,\" said {g}, a {g.kind} from the other side of the hill. {g.they} had {b}.")
    s.say("\"There is room for one more,\" said {k}.", "\"Sit by the fire, {g.again},\" said {k}.")
    s.say("At first everybody was quiet. The wind howled, and the house shook. Then {h} said, \"{f.again} brought {a_again}, and {g.again} brought {b_again}. We have everything that we need!\"",
          "\"Now let us see,\" said {h}. \"Thanks to {f.again} we have {a_again}, and thanks to {g.again} we have {b_again}. This could be fun!\"")
    s.paragraph()
    s.say("They told stories and sang songs until they forgot about the storm. [One by one they fell asleep.|Nobody was afraid anymore.]",
          "They sat close together, laughed, and told each other about their [lives|dreams].")
    s.say("In the morning the sun was shining. They all went out together. First they fixed the roof for {f.again}, and then they made a new fire for {g.again}.",
          "When they woke up, the storm was over and the whole world was shining. Everybody helped to clean up, first at {f}'s house and then at {g}'s.")
    s.say("\"I was not even scared,\" said {h} proudly. \"Well, only a little.\"", "\"It was a terrible storm,\" said {g}, \"but it was a wonderful night.\"")
    s.summary = f"In the storm {f.again} brought {s.recall(supplies[0], 'O')} and {g.again} brought {s.recall(supplies[1], 'O')}, and we had a good time"
    s.moral = "together"


CLUES = {
    "a small white feather": ["goose", "owl", "duck", "pigeon"],
    "muddy paw prints": ["fox", "cat", "badger", "dog"],
    "a long gray whisker": ["mouse", "rat", "rabbit", "mole"],
    "two little hoof prints": ["goat", "deer", "lamb", "pony"],
    "an empty nutshell": ["squirrel", "raccoon", "jay", "chipmunk"],
}


def mystery(s):
    treat = s.pick(words.TREATS)
    clue = s.pick(sorted(CLUES))
    f = s.friend()
    x = s.animal(CLUES[clue])
    spot = s.spots(1)[0]
    count = s.pick(["two", "three", "four", "five"])
    s.cast |= dict(f=f, x=x, treat=treat, clue=clue, spot=spot, count=count, it_was="There were" if clue.endswith("prints") else "It was", treat_again=s.recall(treat, "O"),
                   clue_again=s.recall(clue, "O"), kind_again=s.recall(x.kind), spot_again=s.recall(spot, "P"))
    s.say("{day}, {k} made a {treat} and put it on the window sill[ to cool|]. It smelled [wonderful|so good that {h} could hardly wait].",
          "{day}, there was a {treat} on the kitchen table. \"It is for supper,\" said {k}. \"Nobody may touch it.\"")
    s.say("But when {h} came back [from the garden|an hour later], the {treat_again} was gone! [Not even a crumb was left.|Only an empty plate was there.]",
          "An hour later, {k} cried out. The {treat_again} was gone!")
    s.say("\"It was not me,\" said {h}. \"I will find out who did it.\"", "\"Somebody took it,\" said {h}. \"This is a case for a detective!\"")
    s.paragraph()
    s.say("{h} asked {h.their} friend {f}, a {f.kind} with very good eyes, to help. Under the window they found a clue. {it_was} {clue}!",
          "{f}, a {f.kind} who lived next door, came to help. They looked at everything very closely. \"Look here!\" said {f}. On the ground they saw {clue}.")
    s.say("\"Who leaves {clue_again}?\" asked {h}. {f} thought about it. \"A {x.kind}!\" {f.they} said.", "\"Only one animal around here leaves {clue_again},\" said {f}. \"It must have been a {x.kind}.\"")
    s.atmosphere()
    s.say("They followed the trail {way} until they came to a quiet place. There, {spot}, they saw a {kind_again}.",
          "They walked {way} and looked left and right. Suddenly {h} stopped. \"Shh!\" {h.they} said. {spot} sat a {kind_again}.")
    s.paragraph()
    s.say("\"Did you take our {treat_again}?\" asked {h}. The {x.kind} hung {x.their} head. \"Yes,\" {x.they} said. \"My name is {x}. I am sorry. I have {count} little ones, and they were so hungry.\"",
          "\"I am {x},\" said the {x.kind}, \"and I know why you are here. I took the {treat_again}. My {count} babies had nothing to eat.\"")
    s.say("{h} and {f} looked at the {count} babies, who still had [crumbs|bits of food] on their faces. They could not be angry.",
          "{h} looked at {f}, and {f} looked at {h}. Nobody felt angry anymore.")
    s.say("\"Next time, just ask, {x.again},\" said {h}. \"We always have a little extra.\"", "\"You should have asked us, {x.again},\" said {f}. \"We would have shared.\"")
    s.say("They told {k} everything. {k} shook {k.their} head, but then {k.they} made another {treat_again}, and a second one for {x.again} and the {count} babies.",
          "That evening there was a new {treat_again} on the table, and {h} took a big piece of it to {x.again} {spot_again}.")
    s.summary = f"{f.again} and I found out that {x.again} took the {s.recall(treat, 'O')}"
    s.moral = "clever"


SIGHTS = ["a duck with seven ducklings", "an old man playing a violin", "a white horse", "a cat asleep on a roof", "a bridge made of wood",
          "a boat with a red sail", "a rainbow", "a snail on a mushroom", "a tree full of owls", "a train with nine cars", "a baby deer",
          "a house with a blue door", "a woman with a huge hat", "a dog on a bicycle", "a frog on a rock", "a hot air balloon",
          "a scarecrow with one arm", "two swans", "a goat on a wall", "a waterfall"]


def memory_walk(s):
    f = s.friend()
    sights = s.sample(SIGHTS, 3)
    s.cast |= dict(f=f, a=sights[0], b=sights[1], c=sights[2], a_again=s.recall(sights[0], "L"), b_again=s.recall(sights[1], "L"), c_again=s.recall(sights[2], "L"))
    s.say("{day}, {k} took {h} for a long walk {way}. {h.their} friend {f}, a {f.kind}, [had to stay in bed with a cold|could not come because of a sore foot].",
          "{h}'s friend {f}, a {f.kind} who loved walks, was [sick|ill] {day_low}. So {h} and {k} went for a walk {way} without {f.them}.")
    s.say("\"Look at everything and tell me about it later,\" {f} had said. So {h} kept {h.their} eyes wide open.",
          "\"Will you tell me what you see?\" {f} had asked. {h} had promised to remember it all.")
    s.paragraph()
    s.say("The first thing that {h} saw was {a}. [\"How nice!\" said {k}.|It made {h.them} smile.]", "First they saw {a}. {h} stood still and looked for a long time.")
    s.atmosphere()
    s.say("After that they passed {b}. [{k} pointed at it.|\"I must not forget that,\" thought {h}.]", "Then, not far from {place}, {h} saw {b}.")
    s.say("And at the end, when they had almost turned back, they came to {c}.", "The last thing they saw, just before they went home, was {c}.")
    s.maybe(0.5, "On the way home {h} said it over and over, so that nothing would get lost.", "{h} was tired, but {h.their} head was full of pictures.")
    s.paragraph()
    s.say("[In the evening|Later], {h} sat next to {f}'s bed. \"[So, what|What] did you see, {h.again}?\" asked {f}.", "{f} was already waiting. \"Tell me everything, {h.again}!\" said {f}. \"What was there?\"")
    s.say("\"First I saw {a_again},\" said {h}. \"Then I saw {b_again}. And the last thing was {c_again}!\"",
          "{h} closed {h.their} eyes and counted. \"There was {a_again},\" {h.they} said, \"and then {b_again}, and at the end {c_again}.\"")
    if s.chance(0.6):
        order, text = s.pick([("first", sights[0]), ("second", sights[1]), ("last", sights[2])])
        s.say("\"Tell me the {order} one again,\" said {f}. \"It was {one},\" said {h}.", "\"What was the {order} one?\" asked {f}, who wanted to hear it again. \"It was {one},\" said {h}.", order=order, one=s.recall(text, "L"))
    s.say("{f} [laughed|smiled] and closed {f.their} eyes. \"Now it is almost as if I had been there,\" {f.they} said. \"Thank you, {h.again}.\"",
          "\"I can see it all,\" said {f}. \"You have the best eyes, {h.again}.\" And {f.they} felt much better.")
    s.say("A week later, {f} was well again, and they went on the same walk together.", "\"When you are well, we will go together, {f.again},\" said {h}.")
    s.summary = f"I told {f.again} about {s.recall(s.listed(sights), 'L')}"
    s.moral = "kind"


MESSAGES = ["the bread is ready at four", "the bridge is closed", "the red hen has laid two eggs", "the boat leaves at noon", "supper is at seven",
            "the well has water again", "the school starts at nine", "the blue gate is open", "the bees have moved to the old tree",
            "the baby has been born", "the mill is working again", "the music starts at six", "the road is full of mud", "the apples are ripe"]


def message(s):
    n = s.neighbor()
    f = s.friend()
    text = s.pick(MESSAGES)
    lure = s.pick(["a butterfly with yellow wings", "a big puddle", "a parade of ants", "a funny dog", "a shiny stone", "a kitten in a box"])
    s.cast |= dict(n=n, f=f, text=text, lure=lure, text_again=s.recall(text), lure_again=s.recall(lure, "O"))
    s.say("{day}, {k} said, \"Please run to {n} and tell {n.them} that {text}. Do not forget it!\"", "\"I need a messenger,\" said {k} {day_low}. \"Go to {n} and say that {text}.\"")
    s.say("\"I will not forget,\" said {h}, and set off {way}. All the way {h.they} sang, \"{text_cap}, {text_again}!\"", "{h} said it to {h.themself} at every step. \"{text_cap}, {text_again}.\"", text_cap=text[0].upper() + text[1:])
    s.paragraph()
    s.say("Then {h.they} saw {lure}. {h} stopped to look at it. {h.they} looked and looked.", "But on the way there was {lure}! {h} forgot everything else for a while.")
    s.say("When {h.they} wanted to go on, {h.their} head was empty. \"Oh no! What was the message?\" said {h}.", "Suddenly {h} remembered that {h.they} had a job to do. But what was it that {h.they} had to say?")
    s.say("Just then {f} came by. {f} was a {f.kind} who [knew everybody|lived near {place}]. \"Why do you look so [worried|puzzled], {h.again}?\" asked {f}.", "A {f.kind} named {f} was sitting [on a fence|on a stone]. \"You look lost, {h.again},\" said {f}.")
    s.say("\"I saw {lure_again}, and I forgot my message,\" said {h}. \"Go back to where you last knew it,\" said {f}, \"and walk the same way again.\"",
          "\"I stopped because of {lure_again}, and now I have forgotten what to say,\" said {h}. \"Start your song from the beginning,\" said {f}. \"Your feet will remember.\"")
    s.paragraph()
    s.say("So {h} walked back a little and started again. One step, two steps, three steps, and then the words came back! \"{text_again_cap}!\" {h.they} shouted.",
          "{h} tried it. {h.they} hummed and walked, and all at once {h.they} had it. \"{text_again_cap}!\" {h.they} cried.", text_again_cap=s.recall(text[0].upper() + text[1:]))
    s.say("\"Thank you, {f.again}!\" called {h}, and ran as fast as {h.they} could.", "\"You are a genius, {f.again}!\" said {h}, and hurried on.")
    s.say("{n} was standing at the door. \"I have a message for you,\" said {h}. \"I am to tell you that {text_again}.\"", "{h} knocked at {n}'s door. \"{k.call} says that {text_again},\" {h.they} said, without a mistake.")
    s.say("\"That is good to know,\" said {n}. \"Thank you, {h.again}. You are a fine messenger.\"", "{n} nodded. \"Thank you, {h.again},\" said {n}. \"I was waiting for that.\" And {n.they} gave {h.them} a [plum|cookie|sweet roll].")
    s.summary = f"I told {n.again} that {s.recall(text)}"
    s.moral = "careful"


def hide_and_seek(s):
    friends = [s.friend() for _ in range(3)]
    spots = s.spots(3)
    s.cast |= {key: person for key, person in zip("abc", friends)}
    s.cast |= {f"spot_{key}": spot for key, spot in zip("abc", spots)}
    s.say("{day}, {h} and {h.their} friends {a}, {b} and {c} met at {place}. \"Let us play hide and seek,\" said {a}.",
          "{h} had three good friends. Their names were {a}, {b} and {c}. {day}, they all wanted to play hide and seek.")
    s.say("{h} closed {h.their} eyes and began to count. {a} hid {spot_a}. {b} ran and hid {spot_b}. {c} did not know where to go, and at the last moment {c.they} hid {spot_c}.",
          "{h} counted to twenty. {a} found a good place {spot_a}. {b} hid {spot_b}, and {c} hid {spot_c}.")
    s.say("\"Ready or not, here I come!\" called {h}. [It was very quiet.|Everybody held their breath.]", "Then {h} opened {h.their} eyes. There was nobody to be seen.")
    s.paragraph()
    order = s.sample("abc", 3)
    s.say("First {h} looked {spot}, and there was {who}! \"You found me,\" said {name}.", "{h} tiptoed along and looked {spot}. There sat {who}, as quiet as a mouse.",
          spot=s.cast[f"spot_{order[0]}"], who=s.cast[order[0]].again, name=s.cast[order[0]].name)
    s.say("Then somebody sneezed {spot}. \"I can hear you, {who}!\" said {h}.", "Next, {h.they} saw a foot {spot}. It belonged to {who}!", "Somebody giggled {spot}. It was {who}!",
          spot=s.cast[f"spot_{order[1]}"], who=s.cast[order[1]].again)
    last = s.cast[order[2]]
    s.cast |= dict(last=last, last_spot=s.cast[f"spot_{order[2]}"], last_spot_again=s.recall(s.cast[f"spot_{order[2]}"], "P"))
    s.say("Now only {last.again} was missing. {h} looked high and low. {first.again} and {second.again} helped to look.", "But where was {last.again}? They all looked together.", first=s.cast[order[0]], second=s.cast[order[1]])
    s.maybe(0.6, "\"Maybe {last.they} went home,\" said {first}. \"No,\" said {h}. \"{last.again} would never do that.\"", first=s.cast[order[0]].name)
    s.paragraph()
    s.say("The sun was already low when {h} heard a soft sound. It was somebody snoring! {last.again} was {last_spot_again}, fast asleep.",
          "In the end they found {last.again} {last_spot_again}. {last.they} had waited so long that {last.they} had fallen asleep!")
    s.say("\"Wake up, {last.again}!\" said {h}. \"You won!\" {last} rubbed {last.their} eyes. \"Did I?\" {last.they} asked. \"I was having a good dream.\"",
          "Everybody laughed, and {last} laughed too. \"You are the winner, {last.again},\" said {h}. \"Nobody hides as well as you.\"")
    s.say("Then they all walked home together.", "They played one more round, and then it was time to go home.")
    s.summary = f"we played hide and seek, and {last.again} fell asleep {s.recall(s.cast[f'spot_{order[2]}'], 'P')}"
    s.moral = "together"


def mixed_hats(s):
    friends = [s.friend() for _ in range(3)]
    noun = s.pick(["hat", "scarf", "cap", "coat", "cup", "bag", "balloon"])
    colors = s.sample(words.COLORS, 3)
    s.cast |= {key: person for key, person in zip("abc", friends)}
    s.cast |= {f"color_{key}": color for key, color in zip("abc", colors)}
    s.cast |= dict(noun=noun, nouns="scarves" if noun == "scarf" else noun + "s")
    s.say("{day}, there was a party at {h}'s house. {a} came with a {color_a} {noun}. {b} had a {color_b} {noun}, and {c} had a {color_c} {noun}.",
          "{h} had three friends. {a} had a {color_a} {noun}, {b} had a {color_b} {noun}, and {c} had a {color_c} {noun}. {day}, they all came to visit.")
    s.say("They put the {nouns} on the bench by the door and went inside to [play|eat cake|sing].", "\"You can leave your {noun} by the door,\" said {h}, and then they played all afternoon.")
    s.paragraph()
    s.say("While they were inside, a strong wind blew the door open. Everything flew through the air. When the wind stopped, all the {nouns} lay in one big pile.",
          "But a naughty little [goat|puppy] came in. It pulled everything off the bench and ran around with it. What a mess!")
    s.say("\"Now I do not know whose is whose!\" cried {k}. \"I do,\" said {h}. \"I looked closely.\"", "\"Oh dear,\" said {k}. \"Who can remember which is which?\" \"I can,\" said {h}.")
    order = s.sample("abc", 3)
    phrases = ["\"The {color} one belongs to {name},\" said {h}.", "{h} picked up the {color} one. \"This is for {name},\" {h.they} said.",
               "\"And the {color} {noun} is yours, {name}.\""]
    for key, phrase in zip(order, phrases):
        s.say(phrase, color=s.cast[f"color_{key}"], name=s.cast[key].again)
    s.paragraph()
    asked = s.pick("abc")
    s.cast |= dict(asked=s.cast[asked], asked_color=s.recall(s.cast[f"color_{asked}"], "O"))
    s.say("{asked} was the happiest of all. \"My {asked_color} {noun}!\" {asked.they} said. \"[I thought I had lost it|My grandmother made it for me]. Thank you, {h.again}.\"",
          "\"How did you know that mine was the {asked_color} one?\" asked {asked}. \"I like to look at things,\" said {h}.")
    s.say("Everybody clapped, and {k} brought out [a big cake|hot cocoa|a plate of cookies].", "They all laughed, and the party went on until it was dark.")
    s.summary = f"I remembered that {s.recall(s.cast[asked].name, 'N')} had the {s.recall(s.cast[f'color_{asked}'], 'O')} {noun}"
    s.moral = "clever"


def new_friend(s):
    f = s.friend()
    o = s.thing(["drum", "book", "puppet", "kite", "ball", "boat", "wagon", "box"])
    spot = s.spots(1)[0]
    game = s.pick(["castle", "ship", "tower", "bridge", "tent", "secret house"])
    s.cast |= dict(f=f, o=o, spot=spot, game=game, spot_again=s.recall(spot, "P"), game_again=s.recall(game, "O"))
    s.say("{day}, a new {f.kind} came to live [next door|nearby]. [Nobody knew {f.them}.|{f.they} did not know anybody.] {h} saw {f.them} sitting all alone {spot} with {o.a}.",
          "{day}, {h} saw a {f.kind} who was sitting alone {spot}. {f.they} was holding {o.a} and looking at the ground.")
    s.say("{h} felt [shy|a little shy]. What should {h.they} say? {h.they} walked past once, and then {h.they} walked past again.", "{h} wanted to say hello, but the words got stuck in {h.their} throat.")
    s.say("At home, {k} asked, \"Why do you not say hello?\" \"I do not know how,\" said {h}. \"Just say your name,\" said {k}, \"and then ask a question.\"",
          "\"It is easy,\" said {k} when {h} talked about it. \"Tell them your name. Then ask about something that they like.\"")
    s.paragraph()
    s.say("The next day, {h} [took a deep breath|was brave]. \"Hello,\" {h.they} said. \"My name is {h.again}. That is a nice {o.noun}. Is it yours?\"",
          "So {h} went back. \"Hi, I am {h.again},\" {h.they} said. \"I like your {o.again}. What is your name?\"")
    s.say("The {f.kind} looked up and [smiled|blinked]. \"I am {f},\" {f.they} said. \"Yes, it is mine. Would you like to [try|hold] it?\"", "\"My name is {f},\" said the {f.kind} quietly. \"We just moved here, and {o.the_again} is my only friend.\"")
    s.say("\"You have two friends now, {f.again},\" said {h}.", "\"Then let me be your friend too, {f.again},\" said {h}.")
    s.say("They began to build a {game} out of [sticks and leaves|old boxes|branches]. {f} had many good ideas, and {h} had [strong hands|a good eye].", "\"I know a game,\" said {f}. \"Let us build a {game}!\" They worked all day and laughed a lot.")
    s.atmosphere()
    s.paragraph()
    s.say("When the {game_again} was finished, {f} put {o.the_again} [right in the middle|inside]. \"Now it is perfect,\" {f.they} said.", "In the evening the {game_again} was done. They sat in front of it and {f} shared an apple.")
    s.say("\"I was so lonely yesterday,\" said {f}. \"I am glad that you came, {h.again}.\" \"I was scared to talk to you,\" said {h}. They both laughed.",
          "\"Will you come again tomorrow, {h.again}?\" asked {f}. \"Yes,\" said {h}. \"I will meet you {spot_again}.\"")
    s.summary = f"I made a new friend named {f.again}, and we built a {s.recall(game, 'O')}"
    s.moral = "brave"


PLOTS = [errand, help_animal, overcome_fear, contest, storm, mystery, memory_walk, message, hide_and_seek, mixed_hats, new_friend]
