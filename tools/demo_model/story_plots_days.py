"""Plots about days out: picnics, letters, markets, birds, fog, swapped bags. Each sets `summary` and `moral`."""

import story_words as words


def picnic(s):
    f = s.friend()
    brought = s.sample(["a blanket", "a pot of jam", "a bottle of lemonade", "a bag of cherries", "a loaf of bread", "a round cheese",
                        "a bowl of strawberries", "a plum cake"], 3)
    forgotten = s.pick(["the spoons", "the cups", "the napkins", "the plates"])
    guest = s.helper_animal()
    s.cast |= dict(f=f, a=brought[0], b=brought[1], c=brought[2], x=guest, forgot=forgotten, a_again=s.recall(brought[0], "O"),
                   b_again=s.recall(brought[1], "O"), c_again=s.recall(brought[2], "O"), forgot_again=s.recall(forgotten, "O"))
    s.say("{day}, {h} and {h.their} friend {f}, a {f.kind}, wanted to have a picnic near {place}. {h} packed {a} and {b}. {f} brought {c}.",
          "\"Let us have a picnic,\" said {f}, a {f.kind} who was always hungry, {day_low}. {h} was in charge of {a} and {b}, and {f} took care of {c}.")
    s.say("They walked {way} until they found a soft place in the grass.", "The sun was warm, and they sang all the way there.", "They carried everything {way}, and it was heavier than they had thought.")
    s.atmosphere()
    s.paragraph()
    s.say("They laid everything out. There was {a_again}, there was {b_again}, and there was {c_again}. But something was missing. \"Oh no,\" said {h}. \"I forgot {forgot}!\"",
          "\"Now we can begin,\" said {f}. Then {f.they} looked around. \"Where are {forgot}?\" {h} turned red. \"On the kitchen table,\" {h.they} said.")
    s.say("{f} did not mind. \"Then we will do without {forgot_again},\" {f.they} said. \"Our hands will do.\"", "\"It does not matter, {h.again},\" said {f}. \"Big leaves will do just as well.\"")
    s.say("Just then a {x.kind} came closer and looked at them with big eyes. \"I am {x},\" said the {x.kind}. \"I smelled something good.\"",
          "There was a rustle behind them. It was a {x.kind}, and {x.they} was licking {x.their} lips. \"My name is {x},\" {x.they} said. \"Is there enough for three?\"")
    s.say("\"Sit down, {x.again},\" said {h}. They gave {x.them} a bit of everything.", "\"There is always enough for three,\" said {f}, and made room.")
    s.paragraph()
    s.say("When they had eaten, dark clouds came over the hill. \"It will rain soon,\" said {x.again}. \"I know a dry place. Follow me!\"", "They talked and laughed until the first drops fell. \"Quick!\" said {x.again}. \"Come under my tree. It never lets a drop through.\"")
    s.say("They just made it in time. The three of them sat close together and watched the rain.", "There they sat, dry and happy, while the rain came down all around them.")
    s.say("\"Next time I will bring {forgot_again},\" said {h}. \"And next time I will bring a friend,\" said {x}.", "\"Will you come again, {x.again}?\" asked {f}. \"If you bring {c_again} again,\" said {x}, \"I will be there.\"")
    s.summary = f"{f.again} and I had a picnic with a {guest.kind} named {guest.again}, and I forgot {s.recall(forgotten, 'O')}"
    s.moral = "share"


def letter(s):
    f = s.friend()
    far = s.pick(["on an island", "in the big city", "on the other side of the mountains", "at the end of the railway line", "in a land with no winter"])
    gift = s.thing(["feather", "shell", "ribbon", "stone", "bell", "button"])
    news = s.pick(["I have learned to swim", "I have a baby sister now", "I saw a whale", "I can ride a horse", "I lost my first tooth",
                   "I have planted a lemon tree", "I slept in a tent"])
    bird = s.pick(["pigeon", "crow", "swallow", "stork"])
    s.cast |= dict(f=f, far=far, o=gift, news=news, bird=bird, far_again=s.recall(far, "P"), news_again=s.recall(news), bird_again=s.recall(bird))
    s.say("{h}'s best friend {f}, a {f.kind}, had moved away. Now {f} lived {far}, and {h} missed {f.them} very much.", "{h} had a friend named {f}, a {f.kind} who now lived {far}. They had not seen each other for a whole year.")
    s.say("{day}, {h} sat at the window and sighed. \"Why do you not write a letter?\" asked {k}.", "\"I wish that I could talk to {f.again},\" said {h} {day_low}. \"You can,\" said {k}. \"You can write.\"")
    s.say("So {h} took a sheet of paper. \"Dear {f.again},\" {h.they} wrote, \"how are you? Nothing is the same without you.\" {h.they_cap} put {o.a} into the envelope.",
          "{h} wrote for a long time. {h.they} wrote about the weather, about {k}, and about {place}. At the end {h.they} put {o.a} in with the letter.")
    s.paragraph()
    s.say("A {bird} carried the letter away. \"Fly safely!\" called {h}. Then {h.they} waited. One week went by, and then another.", "{h} tied the letter to the leg of a {bird}, and the {bird_again} flew off into the blue sky. Every day after that, {h} looked up.")
    s.say("\"Maybe the letter is lost,\" said {h}. \"It has to go to a place {far_again}, after all,\" said {k}. \"Be patient.\"",
          "\"{f.again} has forgotten me,\" said {h}. \"Nobody could forget you, {h.again},\" said {k}.")
    s.atmosphere()
    s.paragraph()
    s.say("Then, one morning, something tapped on the glass. It was the {bird_again}, with a letter!", "And then the {bird_again} came back. It was tired and wet, but it had a letter.")
    s.say("\"Dear {h.again},\" it said, \"thank you for the {o.again}. It is the first thing I look at every morning. I have news for you. {news}! Your friend, {f.again}.\"",
          "{h} read it out loud. \"Dear {h.again}, {news}! I think of you all the time. I keep the {o.again} under my pillow. Your {f.again}.\"")
    s.say("{h} read the letter ten times. \"Guess what, {k.call}!\" {h.they} said. \"{f.again} says, '{news_again}!'\"", "{h} ran to {k} with the letter in {h.their} hand. \"It is from {f.again}!\" {h.they} cried, and {h.they} danced through the room.")
    s.say("From then on they wrote to each other every month, and it was almost as if {f.again} did not live {far_again} at all.", "And when summer came, {f.again} visited for a whole week. They had a lot to talk about.")
    s.summary = f"{f.again} sent me a letter and said thank you for the {gift.again}"
    s.moral = "patient"


def market(s):
    coins = s.pick(["three", "four", "five"])
    goods = s.thing(["scarf", "kite", "cap", "whistle", "top", "drum"])
    f = s.friend()
    loss = s.pick([("a broken basket", "basket"), ("a broken jug", "jug"), ("a torn sack", "sack")])
    s.cast |= dict(coins=coins, o=goods, f=f, broken=loss[0], thing=loss[1], coins_again=s.recall(coins))
    s.say("All winter long, {h} had saved {h.their} coins. Now {h.they} had {coins} of them, and {day_low} {h.they} went to buy {o.a} that {h.they} had seen in a window.",
          "{h} wanted to buy {o.a}. It cost {coins} coins, and {h.they} had worked hard to get them. {day}, {h.they} finally had enough.")
    s.say("{h.they} held the coins tightly in {h.their} hand and walked {way}.", "The coins went clink, clink in {h.their} pocket at every step.")
    s.atmosphere()
    s.paragraph()
    s.say("On the way {h.they} met {f}, a {f.kind} who was sitting next to {broken}. \"What happened?\" asked {h}. \"I was going to sell apples,\" said {f}, \"but now my {thing} is broken, and the apples are all over the road.\"",
          "Beside the road stood a {f.kind} named {f} with {broken} and a hundred apples in the mud. \"How will I carry them now?\" said {f}. \"My family needs the money.\"")
    s.say("{h} helped to pick up the apples. \"How much is a new {thing}?\" {h.they} asked. \"{coins_cap_again} coins,\" said {f}, and a tear ran down {f.their} nose.", "They picked up all the apples together. But without a {thing} they could not go far. \"A new one costs {coins_again} coins,\" said {f} quietly.", coins_cap_again=s.recall(coins.capitalize()))
    s.say("{h} looked at {h.their} {coins_again} coins. {h.they} thought of {o.the_again}. Then {h.they} put the coins into {f}'s hand.", "{h} swallowed hard. Then {h.they} opened {h.their} hand. \"Here,\" {h.they} said. \"{o.the_again} can wait.\"")
    s.paragraph()
    s.say("\"I will pay you back, {h.again},\" said {f}. \"I promise.\" And {f.they} ran to get a new {thing}.", "\"Nobody has ever done such a thing for me,\" said {f}. \"What is your name?\" \"{h.again},\" said {h}.")
    s.say("Weeks went by. Then there was a knock at the door. It was {f.again}, with red cheeks and a smile. \"I sold all my apples,\" {f.they} said, \"and this is for you.\" It was {o.the_again}!",
          "At the end of the month, {f.again} came to {h}'s house. \"Here are your {coins_again} coins,\" {f.they} said, \"and here is one apple for each of them.\" Now {h} could buy {o.the_again} after all.")
    s.say("{k} had seen it all. \"You have a good heart, {h.again},\" said {k}.", "The two of them sat down on the steps and ate apples until the sun went down.")
    s.summary = f"I gave my {s.recall(coins)} coins to {f.again}, and later I got {goods.the_again} after all"
    s.moral = "kind"


def fledgling(s):
    bird = s.pick(["sparrow", "robin", "swallow", "blackbird", "finch", "wren"])
    name = s.animal([bird + " chick"])
    spot = s.spots(1)[0]
    bed = s.pick(["old hat", "shoe box", "teapot", "woolen sock", "wooden bowl"])
    food = s.pick(["worms", "seeds", "bread crumbs soaked in milk", "tiny flies", "bits of egg"])
    days = s.pick(["ten", "twelve", "fifteen", "twenty"])
    s.cast |= dict(bird=bird, b=name, spot=spot, bed=bed, food=food, days=days, spot_again=s.recall(spot, "P"), bed_again=s.recall(bed, "O"),
                   food_again=s.recall(food), bird_again=s.recall(bird))
    s.say("{day}, {h} found a baby {bird} {spot}. It had fallen out of its nest, and it was too small to fly.", "{day}, after a windy night, something small was peeping {spot}. It was a baby {bird} without a nest.")
    s.say("{h} carried it home in both hands. \"May I keep it until it can fly?\" {h.they} asked. \"You may,\" said {k}, \"but it is a lot of work.\"", "\"It needs warmth and food,\" said {k}, \"every hour, from morning to night.\" \"I will do it,\" said {h}.")
    s.say("{h} named the bird {b} and made a bed for {b.them} in a {bed}. Every hour, {h} fed {b.them} {food}.", "\"I will call you {b},\" said {h}. The little bird slept in a {bed} and ate {food}, and soon {b.they} grew soft feathers.")
    s.paragraph()
    s.say("{b} grew fast. After {days} days {b.they} was too big for the {bed_again}. {b.they} hopped around and flapped {b.their} wings, but {b.they} did not dare to fly.", "After {days} days, {b.again} looked like a real {bird_again}. But every time {b.they} stood on the edge of the {bed_again}, {b.they} got scared.")
    s.say("\"Look, it is easy!\" said {h}, and {h.they} jumped from a chair and waved {h.their} arms. {b} only blinked.", "\"You can do it, {b.again},\" said {h}. \"I believe in you.\"")
    s.say("{h} took {b} outside, back to the place {spot_again}. Up in a tree sat two big birds who called and called.", "The next morning {h} carried {b} to the place {spot_again}, where {h.they} had found {b.them}. Other birds were singing there.")
    s.paragraph()
    s.say("{b.again} listened. {b.they} stretched {b.their} wings, took a little jump, and flew!", "All at once, {b.again} spread {b.their} wings. One flap, two flaps, and {b.they} was in the air!")
    s.say("{h} was happy and sad at the same time. \"Goodbye, {b.again},\" {h.they} called. \"Come back and see me!\"", "{h} waved until {h.their} arm hurt. There was something in {h.their} eye, and it was not dust.")
    s.say("At home, the {bed_again} was empty. {h} did not put it away. And in the spring, a {bird_again} came to the window and sang. {h} put out some {food_again} right away.", "The next day there was a tap at the window. It was {b.again}! {b.they} came back every day for some {food_again}, and then {b.they} flew off again.")
    s.summary = f"I took care of a baby {s.recall(bird)} named {name.again} until {name.they} could fly"
    s.moral = "patient"


def fog_light(s):
    light = s.thing(["lantern", "lamp"])
    f = s.friend()
    who = s.neighbor()
    song = s.pick(["a song about the moon", "a song about a whale", "a song about spring", "an old sailor song", "a song about seven geese"])
    s.cast |= dict(o=light, f=f, w=who, song=song, song_again=s.recall(song, "O"))
    s.say("{k} had {o.a} that hung beside the door. \"As long as it burns,\" {k} liked to say, \"nobody is ever really lost.\"", "Beside the door of {h}'s house hung {o.a}. {k} lit it every evening, even when the moon was bright.")
    s.say("{day}, a thick fog came down. It was so thick that {h} could not see the fence. Then somebody knocked. It was {f}, a {f.kind}. \"{w} has not come home,\" {f.they} said.",
          "{day}, the fog was as thick as soup. \"{w} is still out there,\" said {f}, a {f.kind} who came running to the door. \"{w.they_cap} will never find the way.\"")
    s.say("\"We have to do something,\" said {h}. {h.they} took {o.the_again} from its hook and held it up high.", "{h} did not think twice. \"Take my hand, {f.again},\" {h.they} said, and {h.they} took {o.the_again} down.")
    s.paragraph()
    s.say("The two friends walked {way}, slowly, one step at a time. \"Hello, {w.again}!\" they called. Nobody answered.", "Outside, everything was white and still. They could only see as far as the light reached.")
    s.say("\"The fog swallows the light,\" said {f}. \"Then let us sing,\" said {h}. \"A song goes farther.\" And they sang {song} as loudly as they could.", "\"{w.they_cap} cannot see us,\" said {h}, \"but maybe {w.they} can hear us.\" So they sang {song}, over and over again.")
    s.say("They sang it once, twice, three times. Then, far away, a deep voice joined in. It was {w.again}!", "All at once {f} stopped. \"Listen!\" {f.they} said. Somebody else was singing {song_again}, very quietly.")
    s.paragraph()
    s.say("{w} came out of the fog, cold and wet. \"I walked in circles for hours,\" {w.they} said. \"Then I heard {song_again}, and then I saw {o.a_again}.\"", "They followed the voice and found {w.again} beside a fence. \"I had given up,\" {w.they} said. \"But then I heard {song_again}.\"")
    s.say("They took {w.them} home, and {k} made hot tea for everyone.", "{h} went first with {o.the_again}, and {f.again} held {w}'s hand. Soon they were all sitting by the fire.")
    s.say("\"Without {h.again} and {f.again}, I would still be out there,\" said {w}.", "\"I will never laugh at singing again,\" said {w}, and everybody laughed.")
    s.say("{k} hung {o.the_again} back on its hook. It burned all night long.", "And {o.the_again}? It went back to its place beside the door, where it still hangs today.")
    s.summary = f"{f.again} and I found {who.again} in the fog with {light.the_again} and {s.recall(song, 'O')}"
    s.moral = "together"


def swapped_bags(s):
    f = s.friend()
    color = s.pick(words.COLORS)
    mine = s.sample(["a pair of socks", "a picture book", "an apple", "a letter", "a wooden horse", "a toothbrush"], 2)
    theirs = s.sample(["a trumpet", "a jar with a snail in it", "a long rope", "a chess game", "a cake", "a box of paints", "a baby tortoise"], 2)
    s.cast |= dict(f=f, color=color, m1=mine[0], m2=mine[1], t1=theirs[0], t2=theirs[1], color_again=s.recall(color),
                   m1_again=s.recall(mine[0], "L"), m2_again=s.recall(mine[1], "L"), t1_again=s.recall(theirs[0], "L"), t2_again=s.recall(theirs[1], "L"))
    s.say("{day}, {h} went on a journey with a {color} bag. In it were {m1} and {m2}.", "{day}, {h} packed {h.their} {color} bag with {m1} and {m2}, because {h.they} was going to stay with {h.their} cousin.")
    s.say("It was a long way, so {h} sat down to rest near {place} and fell asleep for a moment.", "At {place} there were many travelers and many bags, and {h} had to wait for a long time.")
    s.say("When {h} opened the bag later, {h.they} could not believe {h.their} eyes. There was {t1}, and there was {t2}. \"This is not my bag!\" {h.they} said.", "Later {h.they} was hungry and looked into the bag. But there were no things of {h.theirs}. There was only {t1}, and under it {t2}!")
    s.paragraph()
    s.say("\"Somebody has taken my bag by mistake,\" said {h}, \"and I have theirs.\" {h.they_cap} walked back as quickly as {h.they} could.", "{h} thought about it. Somebody else had a {color_again} bag too, and was surely just as surprised.")
    s.say("Near {place} stood a {f.kind} with a {color_again} bag, looking worried. \"Excuse me,\" said {h}. \"What do you have in your bag?\"", "Then {h} saw a {f.kind} who was carrying a {color_again} bag. \"Wait!\" called {h}. \"May I ask you something? What is in there?\"")
    s.say("\"Well,\" said the {f.kind}, \"there should be {t1_again} and {t2_again}. But I found {m1_again} and {m2_again}.\"", "\"That is the strange thing,\" said the {f.kind}. \"I packed {t1_again} and {t2_again}, and now I have {m1_again} and {m2_again}.\"")
    s.say("{h} laughed. \"Those are mine! And these are yours.\" They swapped the bags. \"I am {f},\" said the {f.kind}. \"And I am {h.again},\" said {h}.", "\"Then we only have to trade,\" said {h}. \"My name is {h.again}.\" \"I am {f},\" said the {f.kind} with a smile.")
    s.paragraph()
    s.say("\"Why do you carry {t1_again} around?\" asked {h}. \"That is a long story,\" said {f}, and told it from beginning to end.", "They looked at each other's things and talked so long that they almost forgot the time.")
    s.say("After that they were friends. {h} tied a string to {h.their} bag, so that it would never happen again. {f.again} said that {f.they} was glad it had happened once.", "\"I am glad that you took my bag, {f.again},\" said {h}. \"So am I, {h.again},\" said {f}.")
    s.summary = f"somebody named {f.again} took my {s.recall(color)} bag by mistake, and now we are friends"
    s.moral = "careful"


PLOTS = [picnic, letter, market, fledgling, fog_light, swapped_bags]
