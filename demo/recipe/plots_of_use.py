"""Plots that turn on what an object is good for: a light in the dark, a rope in need, food for the hungry."""

from .plot_tools import plot, using


def own(t):
    t.say("{He} had {an_adj_obj}. {love}",
          "{N} was very proud of {his} {adj} {obj}. {love}",
          "{His} grandmother had given {him} {an_adj_obj}. {love}")
    t.ask("{N} had {an_adj_obj}.", "What did {N} have?", "What did {N} own?")


def end(t, *morals):
    t.say("{N} felt {feel}.", "{N} smiled and felt {feel}.", "That evening {N} felt {feel}.")
    t.ask("{N} felt {feel}.", "How did {N} feel at the end?", "How did {N} feel in the end?")
    t.say(*morals)


RESCUE = {
    "reach": ("{N} lowered the {obj} to {F}.", "{F} held on with all {fhis} strength and climbed out."),
    "sound": ("{N} made as much noise as {he} could with the {obj}.",
              "{H} the {hK} heard it from far away, came running, and pulled {F} out."),
    "light": ("{N} waved the {obj} high in the air.",
              "{H} the {hK} saw the light, came running, and pulled {F} out."),
    "shine": ("{N} held up the {obj} so that it flashed in the sun.",
              "{H} the {hK} saw the flash, came running, and pulled {F} out."),
    "dig": ("{N} took the {obj} and dug steps into the side.", "{F} climbed up, one step after another."),
    "hold": ("{N} filled the {obj} with water from the stream, again and again, and poured it in.",
             "{F} floated higher and higher, until {fhe} could climb out."),
    "cover": ("{N} lay down and let the {obj} hang over the edge.", "{F} caught hold of it, and {N} pulled {fhim} out."),
    "sweep": ("{N} lay down and held the {obj} over the edge.", "{F} caught hold of it, and {N} pulled {fhim} out."),
}
RESCUERS = ("sound", "light", "shine")


@plot(using(*RESCUE))
def stuck(t):
    t.add("f")
    t.add("h", gift="strong")
    t.set(trap=t.dice.pick(["a deep hole", "a muddy pit", "an old dry well", "a steep ditch"]),
          failed=t.dice.pick(["a stick, but it broke", "a long reed, but it was too weak", "{his} own hand, but it was too short"]
                             ).format_map(t.slots))
    own(t)
    t.turn()
    t.say("{time}, {N} heard somebody calling, \"Help! Help!\"", "{time}, a cry for help came over the grass.")
    t.say("{F} the {fK} had fallen into {trap}.", "It was {F} the {fK}, who sat at the bottom of {trap}.")
    t.say('"Do not be afraid," said {N}. "I will get you out."', '"Hold on, {F}!" called {N}.')
    t.say("First {N} tried {failed}.", "{He} tried {failed}.")
    t.say("Then {he} looked at the {obj} and had an idea.", '"The {obj}!" thought {N}. "That could work."')
    t.turn()
    first, then = RESCUE[t.thing.use]
    t.say(first)
    t.say(then)
    t.say('"You saved me!" said {F}, still shaking.', '"Thank you, dear {N}!" said {F}.')
    t.say("They sat down in the sun until {F} was dry and warm.", "Then they walked home together, arm in arm.")
    end(t, "A clear head is the best helper.", "And {F} told everyone about {N} and the {obj}.",
        "Since that day, {N} never went out without the {obj}.")
    t.ask("{F} the {fK} fell into {trap}.", "Who fell into {trap}?")
    t.ask("{F} the {fK} needed help.", "Who needed help?", "Who was in trouble?")
    t.ask("{F} fell into {trap}.", "What did {F} fall into?", "Where was {F} stuck?")
    t.ask("{N} used the {obj}.", "What did {N} use to help {F}?", "How did {N} help {F}?")
    t.ask("{N} tried {failed}.", "What did {N} try first?")
    if t.thing.use in RESCUERS:
        t.ask("{H} the {hK} pulled {F} out.", "Who pulled {F} out?", "Who came running?")
    else:
        t.ask("{N} saved {F}.", "Who saved {F}?", "Who rescued {F}?")


@plot(using("light", "sound", "guide"))
def fog(t):
    t.add("f")
    t.set(weather=t.dice.pick(["a thick fog", "a sudden snowstorm", "a grey mist", "a heavy rain"]))
    own(t)
    t.turn()
    t.say("{time}, {N} and {F} the {fK} went out to pick berries.", "{time}, {N} went for a long walk with {F} the {fK}.")
    t.say("On the way back came {weather}, and they could not see the path.",
          "Then came {weather}, and soon they did not know where they were.")
    t.say('"We are lost," said {F}, and {fhis} voice was shaking.', '"I am afraid," whispered {F}.')
    t.say("They walked to the left, but there was only water. They walked to the right, but there were only thorns.",
          "They walked in a circle and came back to the same stone.")
    t.turn()
    t.say('"Wait, I have my {obj}!" said {N}.', "Then {N} remembered the {obj}.")
    t.say({"light": "{He} held up the {obj}, and step by step its light showed them the path.",
           "sound": "{He} let the {obj} sound as loudly as {he} could, until {F}'s mother answered from far away. They followed her voice.",
           "guide": "{He} wiped {his} eyes and looked at the {obj}, and it told them which way to go."
                    if t.thing.noun != "spyglass" else
                    "{He} looked through the {obj} and saw a little light far away. They walked towards it."}[t.thing.use])
    t.say("At last they saw the windows of home.", "Before long they stood at their own front door.")
    t.say("{F} took {N}'s hand and laughed with relief.", '"You and your {obj} saved us," said {F}.')
    end(t, "Even in the dark there is a way home.", "They drank hot tea and told the story again and again.",
        "And {F} was never afraid when {N} was near.")
    t.ask("{F} the {fK} went with {N}.", "Who went with {N}?", "Who was with {N}?")
    t.ask("They were lost because of {weather}.", "Why were they lost?", "Why could they not see the path?")
    t.ask("{N} used the {obj}.", "What did {N} use to find the way home?", "What helped them to get home?")
    t.ask("{F} was {a_fK}.", "What kind of animal was {F}?", "What animal was {F}?")


@plot(using("warm", "food", "wear"))
def cold(t):
    t.add("f")
    food = t.thing.use == "food"
    t.set(need="hungry" if food else "cold", sign="had not eaten all day" if food else "was shaking from head to foot",
          other=t.dice.pick(["a sack of beans", "a pot of paint", "a clay whistle", "a bag of nuts"]))
    own(t)
    t.turn()
    t.say("One winter evening, somebody knocked at the door.", "One stormy night, {N} heard a knock.",
          "One rainy evening, there was a knock at {N}'s door.")
    t.say("It was {F} the {fK}, who {sign}.", "Outside stood {F} the {fK}. {fHe} {sign}.")
    t.say('"I am so {need}," said {F}. "Everyone else sent me away."', '"Please help me," said {F}. "I am so {need}."')
    if food:
        t.say("{N} looked at the {obj}. {He} had wanted to eat it alone.", "There was nothing to eat in the house but the {obj}.")
        t.say("Then {he} cut the {obj} in two and gave {F} the bigger half.", '"We will share it," said {N}, and gave {F} half of the {obj}.')
    else:
        t.say("{N} looked at the {obj}. {He} did not want to give it away.", "{N} had only one warm thing, and that was the {obj}.")
        t.say("Then {he} gave the {obj} to {F}.", '"Take my {obj}," said {N}, and gave it to {F}.')
    t.say("{F} was soon better, and they talked by the fire.", "{F} sighed happily, and {fhis} eyes shone.")
    t.turn()
    t.say("In the morning {F} thanked {N} and went on.", "When the sun rose, {F} said goodbye.")
    t.say("Some days later, {F} came back with {other} for {N}.", "In spring {F} came again and brought {N} {other}.")
    t.say('"You helped me when I was {need}," said {F}. "I will never forget it."', '"This is for my kind friend," said {F}.')
    end(t, "What you give away comes back to you.", "Kindness keeps everyone warm.", "And the two stayed friends for ever.")
    t.ask("{F} the {fK} knocked at the door.", "Who knocked at the door?", "Who came to {N}?")
    t.ask("{F} the {fK} needed help.", "Who needed help?", "Who asked for help?")
    t.ask("{F} was {need}.", "Why did {F} need help?", "What was wrong with {F}?")
    t.ask("{F} brought {other}.", "What did {F} bring to {N}?", "What did {F} bring?")
    t.ask("{N} shared the {obj}." if food else "{N} gave {F} the {obj}.", "What did {N} do to help?", "How did {N} help {F}?")


@plot(using("float", "reach"))
def flood(t):
    t.add("f")
    t.set(where=t.dice.pick(["on a rock in the water", "on the roof of a shed", "in the top of a willow", "on a tiny island"]),
          rain=t.dice.pick(["three days", "two nights", "a whole week"]))
    own(t)
    t.turn()
    t.say("{time}, it began to rain, and it rained for {rain}.", "Then came a great rain. It rained for {rain}.")
    t.say("The water rose, and the bridge was carried away.", "The stream grew into a river, and the bridge broke.")
    t.say("{F} the {fK} was left {where}.", "On the other side, {F} the {fK} sat {where} and called for help.")
    t.say('"Who can get there?" asked the others. Nobody knew.', "The others stood at the edge and did not dare to go.")
    t.turn()
    t.say('"I have {an_obj}," said {N}, "and I will try."', "Then {N} came with the {adj} {obj}.")
    if t.thing.use == "float":
        t.say("{He} pushed the {obj} into the water and crossed, stroke by stroke.", "{N} got into the {obj} and crossed the wild water.")
        t.say("{F} climbed in, and together they came back.", "{He} took {F} on board, and they came safely back.")
    else:
        t.say("{He} stretched the {obj} over the water, and the others held one end.", "They laid the {obj} from the bank to the other side.")
        t.say("{F} came across, slowly and carefully.", "Holding tightly, {F} crossed the water.")
    t.say("Everyone cheered and hugged them both.", '"I was so afraid," said {F}, "but then I saw you."')
    end(t, "Courage is being afraid and going anyway.", "When the water went down, they all built a new bridge.",
        "And the {obj} got a place of honour by the door.")
    t.ask("{N} saved {F}.", "Who saved {F}?", "Who rescued {F}?")
    t.ask("{F} was {where}.", "Where was {F}?", "Where did {F} wait for help?")
    t.ask("It rained for {rain}.", "How long did it rain?", "For how long did it rain?")
    t.ask("{N} used the {obj}.", "What did {N} use to save {F}?", "How did {N} save {F}?")


@plot(using("grow", "water", "hold", "dig"))
def garden(t):
    t.add("f")
    seed = t.thing.use == "grow"
    if t.slots["at"] == "in the snow":
        t.set(at="in a sheltered corner where the snow had melted")
    t.set(crop=t.dice.pick(["a tiny tree", "a tall green stalk"] if seed else ["carrots", "sunflowers", "pumpkins", "peas", "strawberries"]),
          laugh=t.dice.pick(["Nothing grows in such dry soil", "That will take for ever", "You are too late in the year"]))
    own(t)
    t.turn()
    if seed:
        t.say("{time}, {N} put the {obj} into the earth {at}.", "{time}, {N} planted the {obj} {at}.")
    else:
        t.say("{time}, {N} wanted to grow {crop} {at}, and took the {obj} to work.",
              "{time}, {N} took the {obj} and made a little bed for {crop} {at}.")
    t.say('"{laugh}," said {F} the {fK}.', '{F} the {fK} came by and laughed. "{laugh}!" {fhe} said.')
    t.say("But {N} did not give up.", "{N} only smiled and went on.")
    t.say("Day after day {he} carried water from the stream.", "Every morning {he} got up with the sun and watered the ground.")
    t.say("The summer was dry and hot, and {F} saw how hard {N} worked.", "Then came a week without rain, and the ground cracked.")
    t.say('"Let me help you," said {F} at last, and the two worked together.', "So {F} came to help, and two could carry twice as much.")
    t.turn()
    if seed:
        t.say("One day, {crop} came out of the ground.", "Then, early one morning, they saw {crop}.")
    else:
        t.say("When autumn came, the bed was full of {crop}.", "At last there were {crop}, more than they could count.")
    t.say('"I was wrong," said {F}. "I am glad you did not listen to me."', '"I am sorry I laughed," said {F}.')
    t.say("They had a little feast and invited all the neighbours.", "They sat down in the shade and shared a cool drink.")
    end(t, "Good things need time.", "With patience, even dry soil can bloom.", "And the next spring they began again, together.")
    t.ask("{N} planted the {obj}." if seed else "{N} grew {crop}.", "What did {N} plant?" if seed else "What did {N} grow?")
    t.ask("{F} the {fK} helped {N}.", "Who helped {N}?", "Who helped in the end?")
    t.ask('{F} said, "{laugh}."', "What did {F} say at first?", "What did {F} say to {N} at first?")
    t.ask("{F} was {a_fK}.", "What kind of animal was {F}?", "What animal was {F}?")


@plot(lambda thing: thing.use in ("warm", "light", "sound", "shine", "play", "page", "wear") and thing.noun != "kite")
def fear(t):
    t.add("h")
    t.set(fear=t.dice.pick(["the dark", "thunder", "deep water", "high places", "loud noises"]))
    t.set(test={"the dark": "had not come home, and it was night", "thunder": "was alone outside in a thunderstorm",
                "deep water": "had lost an oar in the middle of the pond", "high places": "sat on a cliff and did not dare to move",
                "loud noises": "was hiding from the noise of the big mill"}[t.slots["fear"]])
    t.say("{N} was afraid of {fear}.", "There was one thing that {N} feared: {fear}.")
    t.say("Only when {he} held {his} {adj} {obj} did {he} feel safe. {love}",
          "{He} had {an_adj_obj} that always made {him} feel better. {love}")
    t.turn()
    t.say("{time}, {N} heard that {his} friend {H} the {hK} {test}.", "{time}, {H} the {hK} {test}.")
    t.say('"Somebody must go to {H}," said {N}, and {his} knees were shaking.', "There was nobody else to help.")
    t.say("{N} took the {obj}, held it tightly, and counted to three.", '"One step at a time," {he} told {himself}, and took the {obj}.')
    t.say("{His} heart beat fast, but {he} went on.", "{He} was still afraid of {fear}, but {he} did not turn back.")
    t.turn()
    t.say('At last {he} found {H}. "You came!" said {H}.', '"I knew that somebody would come!" cried {H} when {he} arrived.')
    t.say('"Take this," said {N}, and gave {H} the {obj} to hold.', "{N} let {H} hold the {obj}, and {H} grew calm.")
    t.say("Then they went home together, side by side.", "Slowly and carefully, {N} led {H} home.")
    t.say("Only at the door did {N} notice that {he} had not been afraid on the way back.",
          '"Were you not afraid?" asked {H}. "Yes," said {N}, "but you needed me."')
    end(t, "To be brave is to be afraid and to go all the same.", "And {fear} never seemed so bad again.",
        "Since then, {N} has been a little braver every day.")
    t.ask("{N} was afraid of {fear}.", "What was {N} afraid of?", "What did {N} fear?")
    t.ask("{N} took the {obj}.", "What did {N} take along?", "What did {N} hold tightly?")
    t.ask("{N} helped {H} the {hK}.", "Whom did {N} help?", "Who did {N} help?")
    t.ask("{H} {test}.", "Why did {H} need help?", "What had happened to {H}?")


@plot(lambda thing: thing.noun in ("flute", "violin", "music box"))
def lullaby(t):
    t.add("f")
    t.set(baby=t.dice.pick(["baby", "youngest child", "little son", "little daughter"]),
          tried=t.dice.pick(["warm milk", "a long story", "a soft pillow", "counting stars"]))
    own(t)
    t.turn()
    t.say("But {N} was shy and only played the {obj} when nobody could hear.", "{N} practised every day, but only when {he} was alone.")
    t.say("{time}, {F} the {fK} looked very tired.", "{time}, {N} met {F} the {fK}, who yawned and yawned.")
    t.say('"My {baby} cannot sleep," said {F}. "I tried {tried}, but it did not help."',
          '"My {baby} cries all night," said {F}. "Not even {tried} helps."')
    t.say("{N} thought of the {obj} and grew red.", '"Perhaps I can help," said {N} quietly.')
    t.turn()
    t.say("That night {he} sat down by the little bed and played the {obj}, as softly as {he} could.",
          "In the evening {he} came with the {adj} {obj} and played a slow, soft tune.")
    t.say("The {baby} listened, smiled, and fell asleep.", "Before the tune was over, the {baby} was fast asleep.")
    t.say('"It is like magic," whispered {F}.', '"You must not hide such music," whispered {F}.')
    t.say("The next day everyone wanted to hear the {obj}.", "Soon the neighbours came to listen, too.")
    end(t, "A gift grows when it is shared.", "And {N} was not shy about {his} music any more.",
        "Since then, the nights {at} have been quiet and sweet.")
    t.ask("{F}'s {baby} could not sleep.", "Who could not sleep?", "Why was {F} tired?")
    t.ask("{F} tried {tried}.", "What did {F} try?", "What had {F} tried?")
    t.ask("{N} played the {obj}.", "What did {N} play?", "How did {N} help {F}?")
    t.ask("{F} was {a_fK}.", "What kind of animal was {F}?", "What animal was {F}?")


@plot(using("roll", "play", "page", "guide", "time", "mend"))
def present_for_the_old(t):
    t.add("h")
    t.set(trouble=t.dice.pick(["had not laughed for a long time", "could not leave the house", "felt lonely",
                               "thought that everyone had forgotten {hhim}"]).format_map(t.slots),
          dish=t.dice.pick(["honey bread", "berry soup", "mint tea", "nut cookies"]))
    own(t)
    t.turn()
    t.say("Not far away lived {H}, a very old {hK}. {hHe} {trouble}.", "Next door lived an old {hK} named {H}, who {trouble}.")
    t.say("{time}, {N} saw {H} at the window, all alone.", "{time}, {N} went past and heard {H} sigh.")
    t.say('"I will visit {hhim}," thought {N}, "and I will take my {obj} along."', "{N} had an idea and ran home to get the {obj}.")
    t.turn()
    t.say('"Look, this is my {obj}," said {N}. {H} put on {hhis} glasses.', '{N} knocked at the door. "May I show you my {obj}?" {he} asked.')
    t.say('"I had one just like it when I was young," said {H}, and {hhe} smiled.',
          '"Oh, that takes me back!" said {H}, and told {N} about {hhis} younger days.')
    t.say("They sat together the whole afternoon, and {H} made {dish}.", "{H} gave {N} some {dish}, and the hours flew by.")
    t.say("When it grew dark, {N} left the {obj} with {H} for the night.", '"Keep the {obj} until tomorrow," said {N}. "Then I have to come back!"')
    t.say("And {N} did come back, the next day and every day after that.", "After that, {N} came to visit every week.")
    end(t, "A little time is the best present of all.", "And {H} was never lonely again.", "Old friends have the best stories.")
    t.ask("{H} the {hK} was old.", "Who was old?")
    t.ask("{H} the {hK} lived near {N}.", "Who lived near {N}?", "Who was {N}'s neighbour?")
    t.ask("{H} {trouble}.", "What was wrong with {H}?", "Why did {N} visit {H}?")
    t.ask("They had {dish}.", "What did they eat or drink?", "What did {H} have for {N}?")
    t.ask("{N} took the {obj} to {H}.", "What did {N} take to {H}?", "What did {N} bring to {H}?")


ALL = [stuck, fog, cold, flood, garden, fear, lullaby, present_for_the_old]
