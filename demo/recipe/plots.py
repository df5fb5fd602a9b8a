"""The plots. Each is a chain of beats: what happens in one is the reason for the next, and the object of the opening
matters to the end. A plot's `suits` says which objects it can be told with."""

from .plot_tools import plot

CLUMSY = ("on a root", "on a sharp stone", "on the hard ground")


def small(thing):
    """What can be hidden or lost."""
    return thing.noun not in ("ladder", "raft", "wagon", "sled", "pumpkin")


def lasting(thing):
    """What is still there after it was shared."""
    return thing.use != "food" and thing.noun != "letter"


def own(t):
    t.say("{He} had {an_adj_obj}. {love}",
          "{N} loved {his} {adj} {obj} more than anything. {love}",
          "{His} greatest treasure was {an_adj_obj}. {love}",
          "Of all {his} things, {N} liked {his} {adj} {obj} best. {love}")
    t.ask("{N} had {an_adj_obj}.", "What did {N} have?", "What did {N} own?")


def end(t, *morals):
    """The feeling, asked about, and a last sentence."""
    t.say("{N} felt {feel}.", "That night {N} felt {feel}.", "{N} smiled and felt {feel}.",
          "At the end of the day, {N} felt {feel}.")
    t.ask("{N} felt {feel}.", "How did {N} feel at the end?", "How did {N} feel in the end?")
    t.say(*morals)


@plot(small)
def lost(t):
    t.add("h", gift=t.dice.pick(["dig", "fly", "small", "climb"]))
    spots = t.dice.several(t.place.spots, 3)
    t.set(spot=spots[0], wrong=spots[1], wrong2=spots[2])
    own(t)
    t.turn()
    t.say("{time}, {N} could not find the {obj} anywhere.", "{time}, the {obj} was gone.",
          "{time}, {N} woke up and the {obj} was missing.")
    t.say("{He} looked {wrong}, but it was not there.", "First {he} searched {wrong}. Nothing.")
    t.say("{He} looked {wrong2}, but there was only dust.", "Then {he} looked {wrong2}, and found only a sleepy beetle.")
    t.say("{N} sat down and began to cry.", "A tear rolled down {his} cheek.", "{His} heart grew heavy.")
    t.turn()
    t.say("{H} the {hK} heard {him} and came closer.", "Just then, {H} the {hK} came by.",
          "{a_hK_cap} named {H} stopped beside {him}.")
    t.say('"Why are you sad?" asked {H}. "I have lost my {obj}," said {N}.',
          '"What is wrong?" asked {H}. "My {obj} is gone," said {N}.')
    t.say('"Where were you yesterday?" asked {H}. "I was playing {at}," said {N}. "Then let us look there together."',
          '"Two can search better than one," said {H}.', '"Do not cry. I will help you," said {H}.')
    gift = next(g for g in t.gifts("h") if g in ("dig", "fly", "small", "climb"))
    t.say({"dig": "{H} dug here and sniffed there, and at last found the {obj} {spot}.",
           "fly": "{H} flew high above, looked down, and saw the {obj} {spot}.",
           "small": "{H} was small enough to look into every corner, and found the {obj} {spot}.",
           "climb": "{H} climbed up high, looked around, and saw the {obj} {spot}."}[gift])
    t.turn()
    t.say('"You found it!" cried {N}, and hugged {H} tightly.', '"Thank you, {H}!" said {N}, jumping with joy.',
          "{N} held the {obj} close and thanked {H} again and again.")
    end(t, "From that day on, {N} and {H} were best friends.", "A friend who helps you look is worth more than any {obj}.",
        "And {he} never left the {obj} lying about again.")
    t.ask("{N} lost the {obj}.", "What did {N} lose?", "Which thing did {N} lose?")
    t.ask("The {obj} was {spot}.", "Where was the {obj} found?", "Where was the {obj}?", "Where did they find the {obj}?")
    t.ask("{H} the {hK} helped {N}.", "Who helped {N}?", "Who helped {N} to find the {obj}?")
    t.ask("{N} looked {wrong}.", "Where did {N} look first?", "Where did {N} search first?")


@plot(lasting)
def quarrel(t):
    t.add("f")
    t.add("h", gift="fly")
    t.say("{time}, {N} and {his} friend {F} the {fK} were playing {at} when they found {an_adj_obj}. {love}",
          "{time}, {N} went for a walk with {F} the {fK}. {At}, they found {an_adj_obj}. {love}")
    t.say('"It is mine!" said {N}. "I saw it first." "No, it is mine!" said {F}.',
          '"I want it!" cried {N}. "So do I!" cried {F}.', '"Mine!" said {N}. "Mine!" said {F}.')
    t.turn()
    t.say("They pulled and pulled, until both fell into the mud.", "They pulled so hard that both of them fell over.",
          "They shouted so loudly that the birds flew away.")
    t.say("An old {hK} named {H} watched them from a branch.", "{H}, a wise old {hK}, shook {hhis} head.")
    t.set(rule=t.dice.pick(["one day each", "until noon and after noon", "one week each", "a morning each"]))
    t.say('"The {obj} cannot be in two places," said {H}, "but you can take turns: {rule}."',
          '"Why not share it?" said {H}. "Take turns with the {obj}, {rule}."')
    t.say("{N} and {F} looked at each other and felt ashamed.", "Both of them grew quiet.")
    t.turn()
    t.say('"You may have it first," said {N}. "I am sorry."', '"I am sorry I shouted," said {N}. "You go first."')
    t.say("{F} smiled and showed {N} a new game with the {obj}.", "So {F} took the {obj} first, and the next turn was {N}'s.",
          "Soon they found that the {obj} was even more fun with two.")
    end(t, "A thing that is shared is twice as good.", "And they never quarrelled about the {obj} again.",
        "From then on, they shared everything.")
    t.ask("They found {an_adj_obj}.", "What did {N} and {F} find?", "What did the two friends find?")
    t.ask("They quarrelled about the {obj}.", "What did {N} and {F} quarrel about?", "Why did {N} and {F} quarrel?")
    t.ask("{H} the {hK} told them to take turns.", "Who told them to take turns?", "Who gave {N} and {F} good advice?")
    t.ask("{F} was {a_fK}.", "What kind of animal was {F}?", "What animal was {F}?")


@plot(lambda thing: thing.part)
def broken(t):
    t.add("h", gift=t.dice.pick(["build", "small"]))
    t.set(glue=t.dice.pick(["strong thread", "pine glue", "warm wax", "a silver pin", "a bit of wire"]),
          bad=t.dice.pick(["mud", "honey", "a blade of grass", "a spider's web"]), how=t.dice.pick(CLUMSY))
    own(t)
    t.turn()
    t.say("{time}, {N} was running {at} with the {obj}, and the {part} broke {how}.",
          "{time}, {N} tripped {at}. The {obj} fell, and its {part} broke {how}.")
    t.say('"Oh no!" cried {N}. "My poor {obj}!"', "{N} stared at it and could not say a word.")
    t.say("{He} tried to mend the {part} with {bad}, but it would not hold.",
          "First {he} tried {bad}, but the {part} came off again.")
    t.turn()
    t.say("Then {he} remembered {H}, a clever {hK} who could mend almost anything.",
          "So {N} went to see {H} the {hK}, who was good at mending things.")
    t.say('"Let me see," said {H}. {hHe} worked all evening with {glue}, and {N} held the light.',
          '"I will try," said {H}. {hHe} took {glue} and worked slowly and carefully.')
    t.say("At last the {part} was fixed, and only a thin line could be seen.",
          "When the moon came up, the {obj} was whole again.")
    t.say('"It is even stronger now," said {H}.', '"What can I give you?" asked {N}. "Only a smile," said {H}.')
    t.turn()
    end(t, "What is mended with care is loved even more.", "The thin line always reminded {N} of a good friend.",
        "And {N} carried the {obj} home slowly, step by step.")
    t.ask("The {part} broke.", "What part of the {obj} broke?", "What broke?")
    t.ask("{N} tried {bad}.", "What did {N} try first?", "What did {N} use first?")
    t.ask("{H} the {hK} mended the {obj}.", "Who mended the {obj}?", "Who fixed the {obj}?")
    t.ask("{H} used {glue}.", "What did {H} use to mend the {obj}?", "What did {H} use?")


@plot(small)
def surprise(t):
    t.add("f")
    t.set(spot=t.dice.pick(t.place.spots), guess=t.dice.pick(["angry with me", "tired of me", "hiding from me"]))
    t.say("{His} best friend was {F} the {fK}.", "{N} and {F} the {fK} were best friends.")
    t.say("Soon it would be {F}'s birthday, and {N} wanted to give {fhim} {an_adj_obj}.",
          "{F}'s birthday was near, and {N} was secretly getting {an_adj_obj} ready for {fhim}.")
    t.say("{love}")
    t.turn()
    t.say("{He} hid the {obj} {spot} and told nobody.", "So that {F} would not see it, {N} kept the {obj} {spot}.")
    t.say('Whenever {F} came to play, {N} said, "I have no time today."',
          'When {F} knocked, {N} called, "Not now, please!"')
    t.say('"Perhaps {N} is {guess}," thought {F}, and {fhe} went home sadly.',
          '{F} walked home alone. "I think {N} is {guess}," {fhe} said.')
    t.turn()
    t.say("On the morning of the birthday, {N} knocked at {F}'s door.", "But on {fhis} birthday, {F} found {N} waiting outside.")
    t.say('"Happy birthday!" said {N}, and gave {fhim} the {adj} {obj}.',
          '"This is for you," said {N}, and held out the {obj}. "Happy birthday!"')
    t.say('"So that was your secret!" laughed {F}.', '"And I thought you were {guess}!" said {F}, and laughed with joy.')
    t.say("They played together until the stars came out.", "They sat down and shared a big piece of cake.",
          "{F} hugged {N} and would not let go.")
    end(t, "Some secrets are kept out of love.", "It was the best birthday of all.",
        "A friend who is busy may be busy with something kind.")
    t.ask("{N} gave {F} {an_adj_obj}.", "What did {N} give to {F}?", "What did {F} get for {fhis} birthday?")
    t.ask("{N} hid it {spot}.", "Where did {N} hide the {obj}?", "Where was the {obj} hidden?")
    t.ask("It was {F}'s birthday.", "Whose birthday was it?", "Who had a birthday?")
    t.ask("{F} was {a_fK}.", "What kind of animal was {F}?", "What animal was {F}?")


@plot()
def race(t):
    t.add("f", gift="run")
    t.add("h", gift="small")
    t.set(goal=t.dice.pick(["the old oak", "the stone bridge", "the red gate", "the tall pine", "the windmill"]),
          trouble=t.dice.pick(["was caught in a thorn bush", "had fallen into a ditch", "had hurt {hhis} foot",
                               "was stuck in the mud"]).format_map(t.slots))
    t.say("{time}, there was a great race {at}. The prize was {an_adj_obj}. {love}",
          "Every year there was a race {at}, and this year the prize was {an_adj_obj}. {love}")
    t.say('"I will win," said {F} the {fK}. "Nobody is as fast as I am."',
          'The fastest of all was {F} the {fK}, who laughed, "You will only see my tail!"')
    t.say("{N} wanted the {obj} very much.", "{N} said nothing, but {he} dreamed of the {obj}.")
    t.turn()
    t.say("The race began, and they all hurried towards {goal}.", "Off they went, all the way to {goal}.")
    t.say("Halfway there, {N} saw {H} the {hK}, who {trouble}.",
          "Then {N} heard a small cry. It was {H} the {hK}, who {trouble}.")
    t.say("{F} went past without looking.", "{F} saw it too, but {fhe} did not stop.")
    t.say("{N} stopped at once and helped {H} up.", "{N} forgot the race and helped {H}.")
    t.turn()
    t.say("When they came to {goal}, {F} had already won.", "So {N} and {H} reached {goal} last, side by side.")
    t.say('But {F} looked at the two and grew quiet. "You should have this," {fhe} said, and gave {N} the {obj}.',
          'But {F} felt ashamed. "You are the real winner," {fhe} said, and put the {obj} in front of {N}.')
    t.say("Everyone cheered.", '"Let us share it," said {N}, and everyone cheered.')
    end(t, "Being kind is better than being first.", "And nobody ever forgot that race.",
        "The slowest heart can be the biggest one.")
    t.ask("The prize was {an_adj_obj}.", "What was the prize?", "What could the winner get?")
    t.ask("{F} the {fK} won the race.", "Who won the race?", "Who came first?")
    t.ask("{H} the {hK} {trouble}.", "Why did {N} stop?", "What had happened to {H}?")
    t.ask("{N} helped {H} the {hK}.", "Whom did {N} help?", "Who did {N} help?")
    t.ask("They ran to {goal}.", "Where did the race end?", "Where did they run to?")


@plot(small)
def found(t):
    t.add("h")
    t.add("f")
    t.add("g")
    t.set(spot=t.dice.pick(t.place.spots))
    t.say("{time}, {N} found {an_adj_obj} {spot}. {love}", "{time}, {he} saw something {spot}. It was {an_adj_obj}! {love}")
    t.say('"May I keep it?" {he} wondered. "But somebody may be missing it."',
          "{N} wanted to keep it, but {he} knew that it was not {hers}.")
    t.turn()
    t.say('{He} asked {H} the {hK}, "Is this your {obj}?" "No," said {H}, "mine is at home."',
          'First {he} showed it to {H} the {hK}. "It is not mine," said {H}. "Ask a little further on."')
    t.say("Then {he} met {F} the {fK}, who was crying.", "A little later {he} saw {F} the {fK}, who looked everywhere and sighed.")
    t.say('"I have lost the {obj} that {G} the {gK} gave me," said {F}.',
          '"My {obj} is gone," said {F}. "It was a present from {G} the {gK}."')
    t.say('"Is it this one?" asked {N}.', '"Then this must be yours," said {N}, and held out the {obj}.')
    t.turn()
    t.say("{F} danced with joy.", '"Yes! Oh, thank you!" cried {F}.')
    t.say('"You could have kept it, but you are honest," said {F}. "Come and play with me!"',
          "{F} invited {N} to tea, and they talked until evening.")
    end(t, "{N} had given back {an_obj} and found a friend.", "Honest hands make good friends.",
        "From that day on, they met every morning {at}.")
    t.ask("{N} found {an_adj_obj}.", "What did {N} find?", "What thing did {N} find?")
    t.ask("{N} found it {spot}.", "Where did {N} find the {obj}?", "Where was the {obj}?")
    t.ask("The {obj} belonged to {F} the {fK}.", "Who owned the {obj}?", "Whose {obj} was it?")
    t.ask("{N} asked {H} the {hK} first.", "Who did {N} ask first?", "Whom did {N} ask first?")
    t.ask("{G} the {gK} gave it to {F}.", "Who gave the {obj} to {F}?", "Who had given {F} the {obj}?")


@plot()
def newcomer(t):
    t.add("f")
    t.set(why=t.dice.pick(["did not know anyone", "spoke very softly", "came from far away", "was too shy to say hello"]))
    own(t)
    t.turn()
    t.say("{time}, a new neighbour moved in. It was {F} the {fK}.", "{time}, {F} the {fK} came to live {at}.")
    t.say("{F} {why}, and so {fhe} sat alone all day.", "{fHe} {why}. Nobody played with {fhim}.")
    t.say("The others whispered and kept away.", "The others went by without a word.")
    t.say('"It must be hard to be new," thought {N}.', "{N} saw it and felt sorry for {fhim}.")
    t.turn()
    t.say("So {he} took {his} {adj} {obj} and went over.", "The next day {N} picked up the {obj} and walked over to {F}.")
    t.say('"This is my {obj}," said {N}. "Would you like to try it?"',
          '"Hello, I am {N}," {he} said. "Do you want to see my {obj}?"')
    t.say("{F} looked up, and for the first time {fhe} smiled.", "At first {F} only nodded, but soon {fhe} was laughing.")
    t.say("When the others heard the laughing, they came to play too.", "One after another, the others came closer and joined in.")
    t.turn()
    end(t, "All it takes is one friendly hello.", "And {F} was never alone again.",
        "From then on, {N} and {F} shared the {obj} every day.")
    t.ask("{F} the {fK} was new.", "Who was new?", "Who moved in?", "Who was the new neighbour?")
    t.ask("{N} showed {F} the {obj}.", "What did {N} show to {F}?", "What did {N} bring to {F}?")
    t.ask("{F} {why}.", "Why was {F} alone?", "Why did {F} sit alone?")
    t.ask("{F} was {a_fK}.", "What kind of animal was {F}?", "What animal was {F}?")


@plot(lambda thing: thing.part and small(thing))
def confession(t):
    t.add("f")
    t.set(spot=t.dice.pick(t.place.spots))
    t.say("{His} friend {F} the {fK} had {an_adj_obj}. {love}", "{N}'s neighbour was {F} the {fK}, who had {an_adj_obj}. {love}")
    t.turn()
    t.say("{time}, when {F} was away, {N} played with the {obj}, and the {part} broke off.",
          '{time}, {N} borrowed the {obj} without asking. Crack! The {part} was broken.')
    t.say("{N} was afraid. {He} hid the {obj} {spot} and ran home.", "Quickly {he} hid it {spot} and told nobody.")
    t.say("That night {he} could not sleep.", "But {his} heart felt as heavy as a stone.")
    t.say('The next day {F} asked, "Have you seen my {obj}?"', '"Where is my {obj}?" {F} asked in the morning, close to tears.')
    t.turn()
    t.say('{N} took a deep breath. "I broke it," {he} said. "I am so sorry."',
          '"I must tell you something," said {N}. "I broke the {part}, and I hid it. I am sorry."')
    t.say("{F} was silent for a while. Then {fhe} nodded.", "{F} was sad, but {fhe} was not angry for long.")
    t.say('"Thank you for telling me the truth," said {F}. "Let us mend it together."',
          '"It was brave of you to tell me," said {F}. "Will you help me to fix it?"')
    t.say("They fetched glue and thread, and by evening the {obj} was as good as new.",
          "They worked side by side until the {part} was in its place again.")
    end(t, "The truth is hard to say, but it makes the heart light.", "That night {he} slept well.",
        "And from then on, {N} always asked before {he} borrowed something.")
    t.ask("{N} broke the {obj}.", "Who broke the {obj}?", "Who had broken the {obj}?")
    t.ask("{N} hid it {spot}.", "Where did {N} hide the {obj}?", "Where was the {obj} hidden?")
    t.ask("The {obj} belonged to {F} the {fK}.", "Who owned the {obj}?", "Whose {obj} was it?")
    t.ask("The {part} broke.", "What part of the {obj} broke?", "What broke?")


@plot(lambda thing: small(thing) and lasting(thing))
def thief(t):
    t.add("f", kind=t.dice.pick([k for k in ("crow", "raccoon", "robin", "mouse", "squirrel") if k != t.slots["K"]]))
    need = t.dice.pick(["{fhis} home was so empty", "{fhis} little ones had nothing to play with",
                        "nobody had ever given {fhim} a present"])
    t.set(need=need.format_map(t.slots), my_need=need.format(fhis="my", fhim="me"),
          spot=t.dice.pick(t.place.spots))
    own(t)
    t.turn()
    t.say("{time}, the {obj} was gone, and there were small footprints on the ground.",
          "{time}, {N} saw that somebody had taken the {obj}. Small footprints led away.")
    t.say("{N} followed the footprints, step by step.", '"I will find out who did this," said {N}, and followed the trail.')
    t.say("The footprints ended {spot}. There sat {F} the {fK} with the {obj}.", "And there, {spot}, was {F} the {fK}, holding the {obj}.")
    t.turn()
    t.say('"That is mine!" said {N}. {F} began to cry.', "When {F} saw {N}, {fhe} turned red and hung {fhis} head.")
    t.say('"I took it because {my_need}," {fhe} said. "I am sorry."', '"I am sorry," whispered {F}. "I took it because {my_need}."')
    t.say("{N} was not angry any more.", "{N} thought about it for a while.")
    t.say('"You should have asked," said {N}. "You may borrow the {obj} every Sunday."',
          '"Next time, just ask," said {N}. "We can use it together."')
    t.say("{F} gave the {obj} back and promised never to steal again.", "{F} gave it back at once and wiped {fhis} eyes.")
    end(t, "It is better to ask than to take.", "So a thief became a friend.", "Sometimes a kind word mends more than a scolding.")
    t.ask("{F} the {fK} took the {obj}.", "Who took the {obj}?", "Who stole the {obj}?", "Who was the thief?")
    t.ask("{F} took it because {need}.", "Why did {F} take the {obj}?", "Why did {F} take it?")
    t.ask("{N} followed the footprints.", "What did {N} follow?", "What led {N} to {F}?")
    t.ask("{F} was {spot}.", "Where was {F}?", "Where did {N} find {F}?")


ALL = [lost, surprise, quarrel, broken, race, found, newcomer, confession, thief]
