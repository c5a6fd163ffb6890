"""Parts of a campaign that break their promises on purpose, for the tests of the runner."""

import os
import random
import signal
import time

from tests.campaign.part import Part, Skipped


class Sound(Part):
    name = "sound"
    promise = "Nothing goes wrong."

    def trial(self, rng):
        time.sleep(0.01)
        return rng.choice(["heads", "tails"])


class Failing(Part):
    name = "failing"
    promise = "A third of the numbers is refused."

    def trial(self, rng):
        time.sleep(0.01)
        number = rng.random()
        assert number > 1 / 3, f"the number is {number}"
        return "fine"


class Crashing(Part):
    name = "crashing"
    promise = "Kills its process now and then."

    def trial(self, rng):
        time.sleep(0.1)
        if rng.random() < 0.3:
            os.kill(os.getpid(), signal.SIGSEGV)
        return "fine"


class Hanging(Part):
    name = "hanging"
    promise = "Takes for ever at once."
    patience = 0.5

    def trial(self, rng):
        time.sleep(3600)


class Absent(Part):
    name = "absent"
    promise = "Needs what no machine has."

    def __init__(self, folder):
        raise Skipped("no machine has it")

    def trial(self, rng):
        raise NotImplementedError


class Unprepared(Part):
    name = "unprepared"
    promise = "Cannot even start."

    def __init__(self, folder):
        raise RuntimeError(f"{random.__name__} is not enough")

    def trial(self, rng):
        raise NotImplementedError


class Greedy(Part):
    name = "greedy"
    promise = "Takes more memory than it may."
    memory = 1 << 28

    def trial(self, rng):
        time.sleep(0.1)
        return str(len(bytes(1 << 30)))
