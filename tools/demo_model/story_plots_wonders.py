"""Plots about wishes, riddles, snow, soup and noises in the night. Each sets `summary` and `moral`."""


def lost_baby(s):
    kinds = ["duckling", "lamb", "kitten", "puppy", "chick", "foal"]
    kind = s.pick(kinds)
    mother = {"duckling": "duck", "lamb": "sheep", "kitten": "cat", "puppy": "dog", "chick": "hen", "foal": "mare"}[kind]
    spot, where, wrong = s.spots(3)
    feature = s.pick(["a white spot on her back", "a red ribbon around her neck", "one blue eye and one green eye", "a torn left ear",
                      "a gray tail", "a black patch over one eye"]) if mother not in ("duck", "hen") else \
        s.pick(["a white spot on her back", "a red ribbon around her neck", "one gray wing", "a blue ring on one leg"])
    f = s.friend()
    s.cast |= dict(kind=kind, mother=mother, feature=feature, spot=spot, where=where, wrong=wrong, f=f, feature_again=s.recall(feature),
                   mother_again=s.recall(mother), where_again=s.recall(where, "P"), kind_again=s.recall(kind))
    s.say("{day}, {h} heard a tiny sound {spot}. There sat a {kind}, all alone and [shaking|crying].", "{day}, {h} was walking {way} when {h.they} found a little {kind} {spot}. It was all alone.")
    s.say("\"Where is your mother?\" asked {h}. \"I do not know,\" said the {kind}. \"She has {feature}. I saw a butterfly, and then she was gone.\"",
          "\"I lost my mother,\" sobbed the {kind}. \"What does she look like?\" asked {h}. \"She has {feature},\" said the {kind}, \"and she is the best mother in the world.\"")
    s.say("\"Do not cry,\" said {h}. \"We will find her.\" And {h.they} carried the {kind_again} {way}.", "{h} picked up the {kind_again} and held it close. \"Let us look for her together,\" {h.they} said.")
    s.paragraph()
    s.say("{wrong} they saw a {mother_again}, but she did not have {feature_again}. \"That is not her,\" said the {kind_again} sadly.",
          "First they met a {mother_again} {wrong}. \"Is that her?\" asked {h}. \"No,\" said the {kind_again}. \"My mother has {feature_again}.\"")
    s.atmosphere()
    s.say("Then {h} met {h.their} friend {f}, a {f.kind}. \"Have you seen a {mother_again} with {feature_again}?\" asked {h}. \"Yes,\" said {f}. \"I saw her {where}. She was calling for somebody.\"",
          "A {f.kind} named {f} came along. \"We are looking for a {mother_again} with {feature_again},\" said {h}. \"I think I saw her {where},\" said {f}. \"She looked very worried.\"")
    s.paragraph()
    s.say("They all ran to look. And there, {where_again}, was a {mother_again} with {feature_again}!", "They hurried there as fast as they could. A {mother_again} was walking up and down {where_again}. She had {feature_again}!")
    s.say("\"Mama!\" cried the {kind_again}, and jumped right into her soft side.", "The {kind_again} gave a happy little cry and ran to its mother.")
    s.say("\"Thank you, {h.again}. Thank you, {f.again},\" said the mother. \"I looked for my baby everywhere.\"", "\"How can I ever thank you?\" said the mother. \"Just stay together,\" said {h}, and {f.again} laughed.")
    s.maybe(0.5, "\"And next time you see a butterfly,\" said {h} to the {kind_again}, \"tell your mother first.\"")
    s.summary = f"{f.again} and I found the mother of a little {s.recall(kind)}. She was {s.recall(where, 'P')}"
    s.moral = "kind"


def one_wish(s):
    giver = s.pick(["golden fish", "tiny fairy", "silver frog", "old wizard", "talking star", "white bird"])
    stuck = s.pick(["under a heavy stone", "in a net", "between two branches", "in a thorn bush", "under a fallen branch"])
    f = s.friend()
    need = s.pick([("could not walk very well", "could walk again", "danced"), ("had lost {f.their} voice", "could speak again", "sang"),
                   ("could not see very well", "could see again", "looked at the stars"), ("had been sick for a long time", "was well again", "jumped for joy")])
    own = s.thing(["crown", "kite", "boat", "drum", "bicycle", "castle"])
    s.cast |= dict(giver=giver, stuck=stuck, f=f, own=own, giver_again=s.recall(giver), stuck_again=s.recall(stuck, "P"))
    s.cast |= dict(need=s.fill(need[0]), healed=need[1], joy=need[2])
    s.say("{h} had always wished for {own.a}. {h.they} thought about it every [night|day].", "More than anything, {h} wanted {own.a}. {h.they} even dreamed about it.")
    s.say("{h.their} best friend was {f}, a {f.kind} who {need}.", "{h} often visited {h.their} friend {f}. {f} was a {f.kind} who {need}.")
    s.paragraph()
    s.say("{day}, near {place}, {h} heard a small voice. \"Help me, please!\" A {giver} was stuck {stuck}.", "{day}, {h} found a {giver} that was stuck {stuck}. \"Please set me free!\" it begged.")
    s.say("{h} worked carefully until the {giver_again} was free.", "It was not easy, but {h} pulled and pushed until the {giver_again} was free.")
    s.say("\"Thank you,\" said the {giver_again}. \"You may have one wish. Think about it well, because there is only one.\"", "The {giver_again} began to shine. \"Because you were kind,\" it said, \"I will give you one wish. Only one.\"")
    s.paragraph()
    s.say("{h} thought of {own.the_again}. {h.they} could almost see it! But then {h.they} thought of {f.again}.", "\"{own.a_cap_again}!\" was the first thing that came into {h.their} head. But {h.they} did not say it. {h.they} thought of {f.again}.")
    s.say("\"I wish that {f.again} {healed},\" said {h}. \"Are you sure?\" asked the {giver_again}. \"Yes,\" said {h}, \"I am sure.\"",
          "\"My wish is not for me,\" {h.they} said at last. \"It is for my friend {f.again}.\" The {giver_again} smiled. \"That is a good wish,\" it said.")
    s.say("There was a flash of light, and the {giver_again} was gone.", "The wind blew once, very softly, and {h} was alone again.")
    s.paragraph()
    s.say("{h} ran to {f}'s house. {f} {healed}! {f.they} laughed and {joy}.", "When {h} came to see {f}, {f.they} opened the door {f.themself}. \"Look at me, {h.again}!\" {f.they} cried. {f.they_cap} {healed}, and {f.they} {joy}.")
    s.say("{h} did not have {own.a_again}, but {h.they} had never been so happy.", "\"How did this happen?\" asked {f}. {h} told {f.them} about the {giver_again} that was stuck {stuck_again}.")
    s.maybe(0.5, "And on {h.their} next birthday, what did {f.again} give {h.them}? {own.a_cap_again}, made by hand!")
    s.summary = f"I met a {s.recall(giver)}, and I used my wish for {f.again}"
    s.moral = "unselfish"


INGREDIENTS = ["carrots", "potatoes", "onions", "beans", "peas", "mushrooms", "cabbage", "tomatoes", "corn", "leeks", "pumpkin", "rice"]


def soup(s):
    people = [s.friend() for _ in range(3)]
    foods = s.sample(INGREDIENTS, 3)
    s.cast |= {key: person for key, person in zip("abc", people)}
    s.cast |= {f"food_{key}": food for key, food in zip("abc", foods)}
    s.cast |= {f"food_{key}_again": s.recall(food, "L") for key, food in zip("abc", foods)}
    pot = s.thing(["pot", "kettle"])
    s.cast |= dict(o=pot)
    s.say("It had been a hard winter, and there was not much to eat. {day}, all that {h} had was {o.a} full of water.", "{day}, {h} was very hungry, but there was nothing in the house except {o.a}, and it was empty.")
    s.say("\"One pot and no soup,\" sighed {k}. But {h} had an idea. {h.they} carried {o.the} outside and made a fire.", "\"I know what to do,\" said {h}. {h.they} filled {o.the} with water, carried it outside and lit a fire under it.")
    s.paragraph()
    s.say("A {a.kind} named {a} came by. \"What are you cooking?\" asked {a}. \"A wonderful soup,\" said {h}, \"but it still needs something.\" \"I have some {food_a},\" said {a}, and dropped it all in.",
          "\"What is that?\" asked {a}, a {a.kind} who lived nearby. \"Soup,\" said {h}. \"It is good, but {food_a} would make it better.\" So {a} ran home and brought some {food_a}.")
    s.say("Then came {b}, a {b.kind} with a cold nose. \"May I have some?\" asked {b}. \"If you have something to put in it,\" said {h}. {b} had some {food_b}.",
          "The smell brought a {b.kind} named {b}. \"I could add some {food_b},\" said {b} shyly. \"Please do!\" said {h}.")
    s.say("Last of all came {c}, a {c.kind} who [never shared anything|was always alone]. {c} looked into the pot. \"It needs {food_c},\" said {c}, and went to get some.",
          "At the end a {c.kind} named {c} peeked around the corner. \"I only have {food_c},\" said {c}. \"That is just what we need!\" said {h}.")
    s.paragraph()
    s.say("They stirred and tasted and stirred again. At last the soup was ready, and everybody got a big bowl.", "Soon {o.the_again} was full to the top, and it smelled like heaven. They all sat around the fire and ate.")
    s.say("\"This is the best soup that I have ever eaten,\" said {k}. \"What is in it?\" \"{a.again} gave {food_a_again}, {b.again} gave {food_b_again}, and {c.again} gave {food_c_again},\" said {h}.",
          "\"How did you make this out of nothing?\" asked {k}. \"It was easy,\" said {h}. \"The {food_a_again} came from {a.again}, the {food_b_again} came from {b.again}, and the {food_c_again} came from {c.again}.\"")
    s.say("\"And you gave the pot and the idea, {h.again},\" said {a}. Everybody laughed.", "After that, they met every week around {o.the_again}, and nobody was hungry or alone anymore.")
    s.summary = f"we made soup with {s.recall(foods[0], 'L')} from {people[0].again}, {s.recall(foods[1], 'L')} from {people[1].again} and {s.recall(foods[2], 'L')} from {people[2].again}"
    s.moral = "together"


RIDDLES = [
    ("What has hands but cannot clap?", "clock"), ("What gets wetter the more it dries?", "towel"), ("What has teeth but cannot bite?", "comb"),
    ("What runs all day but never gets tired?", "river"), ("What has a neck but no head?", "bottle"), ("What can you hear but never see?", "wind"),
    ("What has one eye but cannot see?", "needle"), ("What goes up when the rain comes down?", "umbrella"), ("What is full of holes but still holds water?", "sponge"),
    ("What has a bed but never sleeps?", "river"), ("What follows you all day and leaves at night?", "shadow"),
]


def riddle(s):
    question, answer = s.pick(RIDDLES)
    keeper = s.animal(["owl", "crow", "goat", "cat", "badger", "turtle"])
    f = s.friend()
    gate = s.pick(["the old bridge", "the garden gate", "the narrow path", "the cave"])
    goal = s.pick(["the sweetest berries grew", "the best apples grew", "the water was warm", "the fireflies danced"])
    wrong = s.pick([word for word in ("stone", "mouse", "spoon", "mountain", "boat", "apple") if word != answer])
    s.cast |= dict(question=question, answer=answer, x=keeper, f=f, gate=gate, goal=goal, wrong=wrong, answer_again=s.recall(answer),
                   gate_again=s.recall(gate, "P"), goal_again=s.recall(goal), art="the " if answer in ("wind",) else "a ", question_again=s.recall(question))
    s.say("On the other side of {gate} was a place where {goal}. {day}, {h} and {h.their} friend {f}, a {f.kind}, wanted to go there.", "{day}, {h} and {f}, a {f.kind} who was {h.their} best friend, set off for the place where {goal}. But first they had to pass {gate}.")
    s.say("But in front of {gate_again} sat an old {x.kind} named {x}. \"Nobody gets past me,\" said {x}, \"without the answer to my riddle. {question}\"",
          "There sat {x}, a big {x.kind} with [sleepy|bright] eyes. \"You may pass,\" said {x}, \"if you can tell me this. {question}\"")
    s.say("\"Is it a {wrong}?\" asked {f}. \"No,\" said {x}. \"Come back when you know it.\"", "\"A {wrong}!\" shouted {f}. {x} shook {x.their} head. \"Wrong,\" {x.they} said. \"Think again.\"")
    s.paragraph()
    s.say("The two friends sat down [in the grass|on a log] and thought until their heads hurt. \"{question_again}\" said {f} again and again.", "They went home to think. {h} thought about it at lunch, and {h} thought about it in the bath.")
    s.say("Then {h} looked around, and all at once {h.they} saw it. \"I know!\" {h.they} cried. \"It is so easy!\"", "Suddenly {h} jumped up. \"I have it, {f.again}!\" {h.they} said. \"Come with me!\"")
    s.paragraph()
    s.say("They ran back to {x.again}. \"The answer is {art}{answer}!\" said {h}.", "\"So, what is it?\" asked {x.again}. \"It is {art}{answer},\" said {h} proudly.")
    s.say("{x} smiled for the first time in a hundred days. \"That is right,\" {x.they} said. \"It is {art}{answer_again}. You may pass, {h.again}.\"", "\"{art_cap}{answer_again},\" said {x} slowly. \"Yes, that is right. Nobody has ever known it before.\"", art_cap=s.cast["art"].capitalize())
    s.say("So {h} and {f} walked past {gate_again}, and there it was, the place where {goal_again}. They stayed until evening.", "{f} cheered. They passed {gate_again} together and spent the whole day where {goal_again}.")
    s.say("On the way back, {x.again} was waiting. \"Do you know another riddle?\" asked {h}. \"I know a thousand,\" said {x}.", "And they brought something back for {x.again}, because it is lonely to guard {gate_again} all day.")
    s.summary = f"I solved the riddle of {keeper.again}. The answer was {s.cast['art']}{s.recall(answer)}"
    s.moral = "clever"


def snowman(s):
    f = s.friend()
    scarf = s.thing(["scarf", "hat", "cap"])
    nose = s.pick(["carrot", "potato", "pine cone", "red apple"])
    name = s.pick(["Mr. Frost", "Captain Cold", "Old Snowy", "Professor Ice", "Uncle Winter", "Sir Snow"])
    s.cast |= dict(f=f, o=scarf, nose=nose, name=name, name_again=s.recall(name, "N"), nose_again=s.recall(nose, "O"))
    s.say("One winter morning, the whole world was white. \"Snow!\" cried {h}, and ran outside to find {f}, a {f.kind} who was {h.their} best friend.", "It had snowed all night. In the morning {h} and {h.their} friend {f}, a {f.kind}, ran out into the deep snow.")
    s.say("They rolled three big balls of snow and put one on top of the other. {h} gave the snowman a {nose} for a nose, and {f} gave him {o.a}.", "They built a snowman as tall as a door. For a nose they used a {nose}, and {f} brought {o.a} so that he would look nice.")
    s.say("\"He needs a name,\" said {f}. \"Let us call him {name},\" said {h}.", "\"What is his name?\" asked {k}. \"His name is {name},\" said {h} and {f} together.")
    s.paragraph()
    s.say("But during the night the wind blew hard. In the morning {o.the_again} was gone, and so was the {nose_again}. Poor {name_again}!", "The next day {h} looked out of the window. Something was wrong. {name_again} had no nose, and {o.the_again} was gone!")
    s.say("\"Who would take things from {name_again}?\" asked {f}. They looked for tracks in the snow and found some very small ones.", "\"Look, {f.again}, there are tracks!\" said {h}. They followed the little tracks through the snow.")
    s.say("Behind the house, under a bush, sat a family of [mice|rabbits|hedgehogs]. They had made a warm nest out of {o.the_again} and were eating the {nose_again}.", "The tracks led to a hole under a tree. Inside were three baby rabbits. They lay on {o.the_again}, and there were small bites in the {nose_again}.")
    s.paragraph()
    s.say("\"They need it more than {name_again} does,\" whispered {h}. {f} nodded. \"Let them keep it,\" {f.they} said.", "{h} wanted to be angry, but {h.they} could not. \"They were cold and hungry,\" said {h}. \"It is all right, {f.again}. We can find new things.\"")
    s.say("So they gave {name_again} a new nose and an old blanket. And every day they put some seeds under the bush.", "They went back and gave {name_again} a stick for a nose. He looked even better than before.")
    s.say("When spring came, {name_again} melted away. But the little animals came out to play, and they were not afraid of {h} and {f} at all.", "The snow stayed for a long time, and {name_again} stood there and watched over them all.")
    s.summary = f"{f.again} and I built a snowman named {s.recall(name, 'N')}, and some little animals got {scarf.the_again}"
    s.moral = "share"


NOISES = [
    ("tap, tap, tap", "a branch that knocked on the window", "a branch"), ("scratch, scratch", "a mouse that was building a nest", "a mouse"),
    ("whoo, whoo", "the wind in an empty bottle", "the wind"), ("drip, drip, drip", "water that fell into a bucket", "water"),
    ("bump, bump", "an apple that rolled across the attic floor", "an apple"), ("creak, creak", "the old swing in the garden", "the swing"),
    ("flap, flap", "a towel on the line", "a towel"),
]


def night_noise(s):
    sound, cause, short = s.pick(NOISES)
    f = s.friend()
    light = s.thing(["lantern", "candle", "lamp"])
    guess1, guess2 = s.sample(["a ghost", "a monster", "a giant", "a robber", "a wolf", "a witch"], 2)
    s.cast |= dict(sound=sound, sound_cap=sound[0].upper() + sound[1:], cause=cause, f=f, o=light, g1=guess1, g2=guess2, sound_again=s.recall(sound),
                   g1_again=s.recall(guess1), g2_again=s.recall(guess2))
    s.say("{day}, {h.their} friend {f}, a {f.kind}, came to stay for the night. They told stories until {k} put out the light.", "{f}, a {f.kind} who was {h}'s friend, was allowed to sleep at {h}'s house. They were so happy that they talked until it was very late.")
    s.say("Then, in the dark, they heard it. {sound_cap}. {sound_cap}.", "It was very quiet. And then there was a noise. \"{sound_cap},\" it went.")
    s.say("\"What was that?\" whispered {f}. \"Maybe it is {g1},\" said {h}. \"Or {g2},\" said {f}, and pulled the blanket up to {f.their} nose.", "\"It is {g1}!\" whispered {f}. \"No, it is {g2}!\" whispered {h}. They held hands.")
    s.paragraph()
    s.say("They waited. \"{sound_cap_again},\" it went again, a little louder.", "They tried to sleep, but there it was again. \"{sound_cap_again}.\"", sound_cap_again=s.recall(s.cast["sound_cap"]))
    s.say("\"I am going to look,\" said {h}. {h.they} took {o.a} and got up. \"Wait for me, {h.again}!\" said {f}.", "\"If we stay here, we will never know,\" said {h}. {h.they} lit {o.a}. \"Come on, {f.again}. We will go together.\"")
    s.say("Step by step, they followed the sound. {o.the_again} made long shadows on the wall. Their hearts beat very fast.", "They walked slowly, and {h} held {o.the_again} as high as {h.they} could.")
    s.paragraph()
    s.say("Then they saw what it was. It was only {cause}!", "{h} pointed. It was not {g1_again}, and it was not {g2_again}. It was just {cause}!")
    s.say("{f} started to laugh, and then {h} laughed too. They laughed so loudly that {k} woke up.", "\"That is all?\" said {f}. They laughed until their bellies hurt.")
    s.say("\"What is going on here?\" asked {k}. \"We heard a noise that went {sound_again},\" said {h}. \"{f.again} and I went to look.\" \"That was very brave,\" said {k}.",
          "{k} came in with sleepy eyes. \"We thought that it was {g1_again} or {g2_again},\" said {f}. \"But {h.again} was not afraid, with {o.the_again} in {h.their} hand.\"")
    s.say("After that, whenever they heard \"{sound_again}\" at night, they only smiled.", "Then they went back to bed, and the noise sang them to sleep. {sound_cap}, {sound_again}.")
    s.summary = f"{f.again} and I heard a noise that went {s.recall(sound)}, and we went to look with {light.the_again}"
    s.at_night = True
    s.moral = "brave"


PLOTS = [lost_baby, one_wish, soup, riddle, snowman, night_noise]
