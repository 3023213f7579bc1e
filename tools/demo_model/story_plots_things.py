"""Plots about things: lost, found, broken, shared, grown, traded, hidden. Each sets `story.summary` and `story.moral`."""

import story_words as words

CARRIED = words.TOYS + words.CLOTHES + words.KEEPSAKES
PAUSES = ["watch a line of ants", "pick a flower", "eat some berries", "look at a strange cloud", "listen to a bird",
          "say hello to a snail", "count the ducks that flew by", "catch a falling leaf", "rest for a while"]


def lost_thing(s):
    f = s.friend()
    o = s.thing(CARRIED)
    true, wrong, other = s.spots(3)
    pause = s.pick(PAUSES)
    s.cast |= dict(f=f, o=o, true=true, wrong=wrong, other=other, pause=pause,
                   wrong_again=s.recall(wrong, "P"), other_again=s.recall(other, "P"), true_again=s.recall(true, "P"), pause_again=s.recall(pause))
    s.say("{h} had {o.a}. It [was a present from|had once belonged to] {k}, and {h.they} [loved it|took it everywhere|took good care of it].",
          "More than anything, {h} loved {h.their} {o}. {k} had [made it|found it at the market|given it to {h.them}].",
          "{h.their} favorite thing in the [whole |]world was {o.a} that {k} had given {h.them}.")
    s.say("{day}, {h} [went out to play|went for a walk] with {o.the}. [On the way|After a while], {h.they} stopped {true} to {pause}. Then {h.they} [ran|walked|skipped] on to {place}.",
          "{day}, {h} took {o.the} along to {place}. [First|But first] {h.they} put it down {true} to {pause}.")
    s.atmosphere()
    s.paragraph()
    s.say("[Later|An hour later|When it was time to go home], {h} [reached for|looked for] {o.the}. It was gone!",
          "When {h.they} [wanted to go home|looked down at {h.their} hands], {h.their} heart [sank|jumped]. Where was {o.the}?")
    s.say("\"Oh no!\" [cried|said] {h}. \"I have lost my {o.noun}!\"", "{h} [wanted to cry|felt tears in {h.their} eyes]. [\"It was my favorite thing,\" {h.they} whispered.|]")
    s.say("{h.they} looked {wrong}, but there was [nothing there|only a [sleepy|fat] beetle|only an old leaf]. {h.they} looked {other}, but [it was not there either|found only [dust|a puddle]].",
          "Was it {wrong}? No. Was it {other}? No, it was not there either.")
    s.paragraph()
    s.say("[Just then|A moment later], {h.their} friend {f} came along. \"[What is wrong|Why are you so sad|What are you looking for], {h.again}?\" asked {f}.",
          "{f}, a {f.kind} who [lived nearby|was {h.their} best friend], [came running|stopped to help]. \"What are you looking for?\" asked {f}.")
    s.say("\"I am looking for my {o.again},\" said {h}. \"I looked {wrong_again} and {other_again}, but I [can not|cannot] find it.\"",
          "\"I lost my {o.again},\" said {h}. \"I have looked everywhere!\"")
    s.say("{f} [thought for a moment|scratched {f.their} head]. \"Let us think,\" {f.they} said. \"Where did you stop today?\"",
          "\"Do not run around,\" said {f}. \"[Close your eyes|Sit down] and remember. Where did you have it last?\"")
    s.say("{h} closed {h.their} eyes[ and thought hard|]. \"I stopped to {pause_again},\" {h.they} said slowly. \"That was {true_again}!\"",
          "{h} thought and thought. \"I know!\" {h.they} [shouted|said]. \"I stopped {true_again} to {pause_again}!\"")
    s.paragraph()
    s.say("[The two friends|{h} and {f}] ran back [as fast as they could|together]. There, {true_again}, [lay|was] {o.the_again}[, just where {h.they} had left it|, safe and sound|].",
          "They hurried back, and {f} looked {true_again}. \"Is this it?\" asked {f}, and held up {o.the_again}.")
    s.say("\"[Thank you|Thank you so much], {f.again}!\" said {h}, and gave {f.them} a big hug.",
          "{h} [laughed|jumped for joy]. \"You are [the best friend in the world|so clever], {f.again}!\"")
    s.summary = f"I lost my {o.again}, and {f.again} helped me find it {s.recall(true, 'P')}"
    s.moral = "remember"


def find_owner(s):
    o = s.thing(words.CLOTHES + words.KEEPSAKES + ["umbrella", "basket", "lantern"])
    spot = s.spots(1)[0]
    job1, job2 = s.sample(words.JOBS, 2)
    owner = s.neighbor() if s.chance(0.5) and not s.animals else s.friend()
    other1, other2 = s.sample([color for color in words.COLORS if color not in o.adjectives], 2)
    s.cast |= dict(o=o, spot=spot, job1=job1, job2=job2, w=owner, other1=other1, other2=other2, spot_again=s.recall(spot, "P"))
    if s.animals:
        s.cast |= dict(job1=s.animal(words.FOREST_ANIMALS).kind, job2=s.animal(words.FOREST_ANIMALS).kind)
    s.say("{day}, {h} was walking {way} when {h.they} saw something {spot}. It was {o.a}!",
          "{day}, {h} found {o.a} {spot}. [Nobody was near|There was nobody around].")
    s.say("It was [very pretty|nice], and {h} [wanted to keep it|would have liked to keep it]. But {h.they} thought, \"Somebody must be looking for this.\"",
          "\"Somebody must be sad without this,\" said {h}. {h.they} picked it up carefully and [went to look|set off to look] for the owner.")
    s.atmosphere()
    s.paragraph()
    s.say("First {h} asked the {job1}. \"Is this your {o.noun}?\" \"No,\" said the {job1}. \"Mine is {other1}.\"",
          "{h} met the {job1} first. \"Did you lose a {o.noun}?\" asked {h}. \"I have one,\" said the {job1}, \"but it is {other1}, and it is at home.\"")
    s.say("Then {h.they} asked the {job2}. \"Not mine,\" said the {job2}. \"I lost a {o.noun} last year, but it was {other2}.\"",
          "Next, {h.they} asked the {job2}. \"I have never owned a {o.noun},\" said the {job2}. \"But good luck!\"")
    s.maybe(0.4, "{h} was getting tired, but {h.they} did not give up.", "\"I will ask one more time,\" said {h}.")
    s.paragraph()
    s.say("At last {h} saw {w}. {w} was [walking slowly|sitting on the ground] and looking [everywhere|very sad].",
          "[Near|Close to] {place}, {h.they} met {w}[, who looked worried|, who was looking at the ground].")
    s.say("\"What is the matter?\" asked {h}. \"I have lost something,\" said {w}. \"It is {o.a_again}.\"",
          "\"Did you lose something?\" asked {h}. \"Yes,\" said {w}, \"{o.a_again}. I had it [this morning|yesterday].\"")
    s.say("{h} smiled and [held out|showed] {o.the_again}. \"I found it {spot_again},\" {h.they} said.",
          "\"Then this must be yours!\" said {h}, and [took out|held up] {o.the_again}. \"It was {spot_again}.\"")
    s.say("{w} was so happy that {w.they} [laughed out loud|hugged {h}|danced in a circle]. \"[Thank you|You are very kind], {h.again}!\"",
          "\"You could have kept it,\" said {w}, \"but you brought it back. Thank you, {h.again}!\"")
    s.maybe(0.5, "{w} gave {h.them} a [warm bun|sweet pear|shiny button] and they [talked|sat together] for a while.")
    s.summary = f"I found {o.a_again} {s.recall(spot, 'P')} and gave it back to {owner.again}"
    s.moral = "give_back"


def broken_vase(s):
    vase = s.thing(["vase", "cup", "plate", "bowl", "lamp", "clock"])
    o = s.thing(["ball", "kite", "drum", "wagon", "hoop"])
    hidden = s.pick(["under the bed", "behind the curtain", "in an old box", "under a pile of leaves", "behind the stairs"])
    s.cast |= dict(v=vase, o=o, hidden=hidden, hidden_again=s.recall(hidden, "P"))
    s.say("At home, on a shelf by the window, stood {v.a}. {k} loved it [very much|more than anything], because it was [very old|a gift from a friend].",
          "{k} had {v.a}, and it stood [by the window|on the table]. \"Be careful with it,\" {k} always said.")
    s.say("{day}, it was [raining|too cold to go outside], so {h} played inside with {o.a}. \"Just for a little while,\" {h.they} thought.",
          "{day}, {h} was [bored|full of energy]. {h.they} ran around the house with {h.their} {o}.")
    s.paragraph()
    s.say("[Crash|Bang|Crack]! {o.the} hit the shelf, and {v.the} fell down and broke into [three|four|five|many] pieces.",
          "Then it happened. {h} turned too fast, and {o.the} [flew|slipped] out of {h.their} hands. {v.the} fell to the floor. [Crash|Bang]!")
    s.say("{h} was [very scared|so afraid that {h.they} could hardly breathe]. {h.they} picked up the pieces and hid them {hidden}.",
          "\"Oh no,\" whispered {h}. \"What have I done?\" [Quickly|With shaking hands], {h.they} hid the pieces {hidden}.")
    s.say("But {h} did not feel better. At [supper|lunch], {h.they} could not eat. {h.their} stomach [hurt|felt like a stone].",
          "All [day|afternoon], {h} felt bad inside. Even {h.their} favorite game was no fun.")
    s.paragraph()
    s.say("That evening, {k} looked at the [empty place|shelf]. \"Where is my {v.again}?\" {k.they} asked.",
          "\"You are so quiet, {h.again},\" said {k}. \"Is something wrong?\"")
    s.say("{h} [took a deep breath|looked at the floor]. \"I broke {v.the_again},\" {h.they} said[ in a small voice|]. \"I was playing with my {o.again}. The pieces are {hidden_again}. I am so sorry.\"",
          "Tears ran down {h}'s [face|cheeks]. \"It was me,\" {h.they} said. \"I broke {v.the_again} with my {o.again}, and I hid the pieces {hidden_again}. I am sorry.\"")
    s.say("{k} was quiet for a moment. Then {k.they} [put an arm around {h.them}|took {h.their} hand]. \"I am sad about the {v.noun},\" said {k}, \"but I am glad that you told me the truth.\"",
          "{k} sighed. \"Thank you for telling me,\" {k.they} said. \"A {v.noun} can be mended. It is harder to mend a lie.\"")
    s.say("Together they [found the glue|sat down at the table] and put the pieces [back |]together. {v.the_again} had [some cracks|a few thin lines] now, but {k} said that {k.they} liked it even more.",
          "They glued the pieces together, one by one. When they were done, {v.the_again} stood on the shelf again.")
    s.say("After that, {h} only played with {o.the_again} outside.", "{h} felt as light as a feather. From then on, {h.they} took {o.the_again} outside to play.")
    s.summary = f"I broke {vase.the_again}, and then I told the truth about it"
    s.moral = "honest"


def share_toy(s):
    f = s.friend()
    o = s.thing(["kite", "drum", "wagon", "boat", "train", "bear", "sled", "swing", "rope", "ball"])
    spot = s.spots(1)[0]
    s.cast |= dict(f=f, o=o, spot=spot, spot_again=s.recall(spot, "P"))
    s.say("{h}'s best friend was a {f.kind} named {f}. They [played together every day|did everything together|lived next door to each other].",
          "{h} had a good friend, a {f.kind} called {f}. [Nearly every day|After breakfast], they met at {place}.")
    s.say("{day}, the two friends found {o.a} {spot}. [It belonged to nobody|Somebody had thrown it away], but it was [still good|as good as new].",
          "{day}, while they were playing, they saw {o.a} {spot}. It looked [lonely|old but strong].")
    s.say("\"I saw it first!\" said {h}. \"No, I did!\" said {f}.", "\"It is mine!\" shouted {h}. \"No, it is mine!\" shouted {f}.")
    s.paragraph()
    s.say("{h} pulled on one side, and {f} pulled on the other. They pulled and pulled until, [crack|snap|rip], {o.the} [came apart|broke in two].",
          "They both held on to it and pulled as hard as they could. [Snap|Crack]! {o.the} broke, and both of them fell down.")
    s.say("Now nobody could play with it. {f} [began to cry|walked away without a word], and {h} [sat down alone|kicked a stone].",
          "They looked at the [broken pieces|pieces on the ground]. Now they had nothing at all. {h} [went home|sat down] and felt [terrible|very sad].")
    s.say("\"[What happened|Why the long face]?\" asked {k}. {h} told {k.them} everything. \"Hm,\" said {k}. \"What do you miss more, the {o.again} or {f.again}?\"",
          "{k} [listened to the whole story|heard what had happened]. \"A {o.noun} can be fixed,\" {k.they} said. \"But you should fix your friendship with {f.again} first.\"")
    s.paragraph()
    s.say("{h} thought about that. Then {h.they} went to see {f}. \"I am sorry, {f.again},\" {h.they} said. \"I would rather have you than {o.a_again}.\"",
          "[The next morning|Right away], {h} knocked on {f}'s door. \"I am sorry, {f.again},\" said {h}. \"Can we fix {o.the_again} together?\"")
    s.say("\"I am sorry too, {h.again},\" said {f}. They [got some string and some glue|found a hammer and some nails|borrowed some tools] and worked all [morning|afternoon].",
          "{f} smiled. \"I am sorry too,\" {f.they} said. So they sat down {spot_again} and worked side by side until {o.the_again} was whole again.")
    s.say("Then they made a rule. [{h} got to use it on sunny days, and {f} got to use it on cloudy days.|One day it was {h}'s turn, and the next day it was {f}'s turn.] [It worked very well.|Best of all, most days they used it together.]")
    s.summary = f"{f.again} and I fixed {o.the_again}, and now we share it"
    s.moral = "share"


def plant_seed(s):
    f = s.friend()
    seed = s.pick(sorted(words.SEEDS))
    days = s.pick(["three", "five", "six", "seven", "ten"])
    spot = s.pick(["by the kitchen window", "behind the house", "in a corner of the garden", "next to the front door"])
    s.cast |= dict(f=f, seed=seed, days=days, spot=spot, grown=words.SEEDS[seed], seed_again=s.recall(seed), spot_again=s.recall(spot, "P"))
    s.say("{day}, {k} gave {h} a [tiny|little] {seed} seed. \"Plant it and take care of it,\" {k.they} said, \"and you will have a surprise.\"",
          "{day}, {h} got a present from {k}. It was only a small {seed} seed. \"[Be patient with it|It needs water and time],\" said {k}.")
    s.say("{h} [dug a small hole|made a hole with {h.their} finger] {spot} and put the seed inside. {h.they} covered it with earth and gave it [a drink of|some] water.",
          "{h} planted the seed {spot}, and [patted the earth flat|watered it with care].")
    s.paragraph()
    s.say("The next day, {h} ran to look. There was nothing. The day after that, there was [still |]nothing[ but brown earth|].",
          "Every morning, {h} went to look, and every morning there was only [brown earth|dirt].")
    s.say("{h.their} friend {f} came by. \"[Nothing will grow there|That seed is asleep forever], {h.again},\" said {f}. \"Come and play!\"",
          "A {f.kind} named {f} looked over the fence. \"You are watering dirt,\" laughed {f}. \"That is silly!\"")
    s.say("\"[I will wait|I promised to look after it],\" said {h}. {h.they} kept watering it[, day after day|, even when it was windy|].",
          "{h} did not answer. {h.they} [filled the can|got some water] and gave the seed another drink.")
    s.paragraph()
    s.say("After {days} days, something green poked out of the ground. \"Look, look!\" cried {h}. [It was so small that only {h} could see it.|]",
          "Then, after {days} days, there was a tiny green leaf. {h} was so happy that {h.they} [danced|sang a song to it].")
    s.say("The leaf grew into a [stem|plant], and the plant grew and grew. By [the end of summer|summer], there was {grown} {spot_again}.",
          "Week after week it grew. [At last|One day], {h} had {grown}.")
    s.say("{f} came to look and could not believe it. \"You were right,\" said {f}. \"How did you do it?\" \"It was just a {seed_again} seed,\" said {h}, \"and a lot of [waiting|water].\"",
          "\"I was wrong, {h.again},\" said {f}. \"May I [help you next time|plant one too]?\" \"Of course, {f.again},\" said {h}, and gave {f.them} a {seed_again} seed.")
    s.say("{k} was [very proud|proud of {h.them}]. \"You see,\" said {k}, \"that [is what a {seed_again} seed can do|was the surprise].\"")
    s.summary = f"I grew a {s.recall(seed)} from a seed, right {s.recall(spot, 'P')}"
    s.moral = "patient"


def trading(s):
    a, b, c = s.thing(words.KEEPSAKES, True), s.thing(words.CLOTHES, True), s.thing(words.TOOLS, True)
    people = [s.friend() for _ in range(3)]
    s.cast |= dict(a=a, b=b, c=c, x=people[0], y=people[1], z=people[2])
    wish = s.pick(["pie", "kite", "bell", "lamb", "story book", "cake"])
    wish = wish if wish not in s.used_names else "wooden flute"
    s.cast |= dict(wish=wish, wish_again=s.recall(wish, "O"))
    s.say("{k}'s birthday was coming soon, and {h} wanted to give {k.them} a {wish}. But all {h.they} had was {a.a}.",
          "{h} wanted to get a {wish} for {k}, but {h.they} had no money. {h.they} only had {a.a}.")
    s.say("\"[Well, it is a start|Maybe I can trade it],\" said {h}, and {day_low} {h.they} set out for {place}.",
          "So {day_low}, {h} took it along and went {way}.")
    s.paragraph()
    s.say("First {h.they} met a {x.kind} named {x}. \"What a nice {a.noun}!\" said {x}. \"I will give you {b.a} for it.\" {h} agreed.",
          "On the way {h.they} met a {x.kind} named {x}, who needed a {a.noun}. \"Will you trade it for {b.a}?\" asked {x}. \"Yes!\" said {h}.")
    s.say("A little later came {y}, a {y.kind} who was [cold|in a hurry]. \"I need {b.a_again}!\" said {y}. \"I can give you {c.a} for it.\" So they traded.",
          "Next {h.they} met a {y.kind} named {y}. {y} looked at {b.the_again} and said, \"I would give you {c.a} for that.\" And so {h} traded again.")
    s.say("[Finally|Near {place}], {h.they} met {z}, a {z.kind} who was [sitting beside|holding] a {wish} and looking sad. \"If only I had a {c.noun},\" said {z}.",
          "Then {h.they} saw a {z.kind} named {z}. {z} had a {wish}, but {z.they} sighed. \"I do not need this. I need a {c.noun}!\"")
    s.say("\"I have {c.a_again},\" said {h}. \"Would you like to trade?\" {z} [clapped {z.their} hands|jumped up]. \"Oh yes, please!\"",
          "{h} held out {c.the_again}. \"Take this,\" {h.they} said, \"and I will take the {wish_again}.\" They were both very happy.")
    s.paragraph()
    s.say("[On the birthday|That evening], {h} gave the {wish_again} to {k}. \"Where did you get this?\" asked {k}.",
          "{h} carried the {wish_again} home to {k}. \"It is [lovely|wonderful]! How did you get it?\" {k.they} asked.")
    s.say("{h} laughed. \"I gave {a.the_again} to {x.again} for {b.the_again}. I gave {b.the_again} to {y.again} for {c.the_again}. And I gave {c.the_again} to {z.again} for this!\"",
          "\"It started with {a.the_again},\" said {h}. \"{x.again} gave me {b.the_again} for it. Then {y.again} gave me {c.the_again}, and {z.again} gave me this.\"")
    s.say("{k} [shook {k.their} head and smiled|laughed and laughed]. \"What a clever {h.kind} you are, {h.again}!\"", "\"You are [very clever|a real trader], {h.again},\" said {k}.")
    s.summary = f"I traded {a.the_again} until I had a {s.recall(wish, 'O')}"
    s.moral = "clever"


def surprise_gift(s):
    f = s.friend()
    o = s.thing(["kite", "scarf", "hat", "boat", "drum", "puppet", "basket", "box", "blanket", "whistle"])
    spot = s.spots(1)[0]
    guesses = s.sample([noun for noun in ["ball", "book", "cake", "cup", "bell", "lamp", "flute", "spoon"]], 2)
    days = s.pick(["two", "three", "four", "five"])
    s.cast |= dict(f=f, o=o, spot=spot, g1=guesses[0], g2=guesses[1], days=days, spot_again=s.recall(spot, "P"))
    s.say("[Soon|In {days} days] it would be {f}'s birthday. {f} was {h}'s [best|good] friend, a {f.kind} who [loved surprises|always made {h} laugh].",
          "{h} had a friend named {f}. {f} was a {f.kind} who loved surprises, and {f.their} birthday was [coming soon|only {days} days away].")
    s.say("{day}, {h} started to make {o.a} as a gift. It was [hard work|not easy], but {h.they} worked [carefully|with a smile] until it was [done|just right].",
          "{h} decided to make {o.a} for {f.them}. {day}, {h.they} worked on it [from morning until night|for hours], and {k} helped a little.")
    s.say("\"Where can I hide it?\" thought {h}. [At last|Then] {h.they} wrapped it in paper and hid it {spot}.",
          "So that {f} would not see it, {h} hid the gift {spot}.")
    s.paragraph()
    s.say("The next day, {f} came by. \"[You look like you have a secret, {h.again},\" said|Why are you smiling like that, {h.again}?\" asked] {f}.",
          "But {f} could tell that something was going on. \"You have a secret!\" said {f}.") 
    s.say("\"Is it a {g1}?\" asked {f}. \"No,\" said {h}. \"Is it a {g2}?\" \"No!\" laughed {h}. \"You have to wait.\"",
          "\"Did you get me a {g1}?\" \"No.\" \"A {g2}?\" \"No, and I will not tell you!\" said {h}.")
    s.atmosphere()
    s.paragraph()
    s.say("[At last|Finally], the birthday came. [There was a cake with candles, and everybody sang.|Everyone came, and there was cake for all.] \"Now close your eyes, {f.again},\" said {h}.",
          "On the morning of the birthday, {h} took {f} by the hand. \"Come with me, {f.again},\" {h.they} said.")
    s.say("They walked to the place, and there, {spot_again}, was the gift. {f} tore off the paper. Inside was {o.a_again}!",
          "{h} ran to get the gift that was hidden {spot_again} and put it in {f}'s hands. {f} opened it. It was {o.a_again}!")
    s.say("\"You made this for me?\" asked {f}. \"It is the best {o.noun} in the world. Thank you, {h.again}!\"",
          "{f} was so happy that {f.they} could not speak. Then {f.they} hugged {h}. \"I will keep it forever,\" {f.they} said.")
    s.summary = f"I gave {f.again} {o.a_again} that I made myself"
    s.moral = "kind"


def treasure_notes(s):
    first, second, third = s.spots(3)
    o = s.thing(words.KEEPSAKES + words.TOYS)
    f = s.friend()
    s.cast |= dict(f=f, o=o, s1=first, s2=second, s3=third, s2_again=s.recall(second, "P"), s3_again=s.recall(third, "P"),
                   s1_again=s.recall(first, "P"))
    s.say("{day}, {h} found a [folded|yellow|tiny] note {s1}. [\"A treasure map!\" {h.they} whispered.|{h.they} opened it with shaking fingers.] It said, \"Look {s2}, and you will find the next note.\"",
          "{day}, {h} saw something white {s1}. It was a note! {h.they} read it out loud. \"If you like treasure, look {s2}.\"")
    s.say("{h} ran to get {h.their} friend {f}, a {f.kind} who loved [adventures|secrets]. \"Read this!\" said {h}. \"We have to look {s2_again}.\"",
          "{h.their} friend {f}, a {f.kind}, came running. \"What does it say?\" asked {f}. \"It says that we should look {s2_again},\" said {h}.")
    s.paragraph()
    s.say("They went there together. At first they saw nothing. Then {f} [lifted a stone|pushed away some leaves], and there was the second note. It said, \"Well done! Now go and look {s3}.\"",
          "The two friends [hurried|ran] {way}. And really, {s2_again}, there was another note. \"You are close,\" it said. \"The treasure is {s3}.\"")
    s.atmosphere()
    s.say("\"Who wrote this?\" asked {f}. \"[I do not know|Maybe a pirate|Maybe a king],\" said {h}. \"Come on!\"", "\"I am a little scared,\" said {f}. \"Do not worry, {f.again},\" said {h}. \"I am with you.\"")
    s.paragraph()
    s.say("They looked {s3_again}. [There was a small wooden chest.|Under some straw stood an old box.] {h} opened it slowly. Inside lay {o.a}.",
          "[At last|Soon] they stood before a little chest {s3_again}. \"You open it,\" said {f}. {h} lifted the lid. In it was {o.a}!")
    s.say("Beside it was one last note. It said, \"For {h.again}, who never gives up. With love from {k.call}.\"",
          "There was also a card. \"Dear {h.again},\" it said, \"you are a great finder. With love, {k.call}.\"")
    s.say("{h} [laughed|smiled from ear to ear]. It had been {k} all along! {h.they} ran home and [hugged {k.them}|showed {k.them} the {o.again}].",
          "\"It was {k.call}!\" cried {h}. They ran home to say thank you, and {h} carried {o.the_again} in both hands.")
    s.say("\"How did you find it?\" asked {k} with a smile. \"The first note was {s1_again}, the second was {s2_again}, and the treasure was {s3_again},\" said {h}.",
          "\"Was it hard?\" asked {k}. \"First we looked {s2_again}, and then {s3_again},\" said {h}. \"{f.again} helped me.\"")
    s.summary = f"{f.again} and I followed the notes, and we found {o.a_again}"
    s.moral = "clever"


PLOTS = [lost_thing, find_owner, broken_vase, share_toy, plant_seed, trading, surprise_gift, treasure_notes]
