"""What a plot is: a function that tells, and a test of which objects it suits."""


def plot(suits=lambda thing: True):
    def mark(tell):
        tell.suits = suits
        return tell
    return mark


def using(*uses):
    return lambda thing: thing.use in uses
