"""The built-in prompts: free text, code, copies, translations, summaries, all of them long, and forms."""

from __future__ import annotations

from .forms import SCHEMA_PROMPTS

_CHAT = (
    "Explain to a ten-year-old why the sky is blue by day and red at sunset.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "What should I think about before I adopt a dog? Give me a detailed list.",
    "Describe how bread is made, from the flour to the oven, step by step.",
    "Compare living in a large city with living in a small village.",
    "Write a polite letter to a neighbour who plays the piano late at night.",
    "How did the invention of the printing press change Europe?",
    "Give me a plan for learning to swim as an adult, week by week.",
)

_CODE = (
    "Write a Python function that merges two sorted lists into one sorted list, with a docstring.",
    "Write a Python class for a stack with push, pop, peek and a method that tells its size.",
    "Write a JavaScript function that groups an array of objects by the value of a key.",
    "Write a Python function that counts how often each word occurs in a text file.",
    "Write a C function that reverses a string in place, and explain each line.",
    "Write a Python script that reads a CSV file and prints the mean of every numeric column.",
    "Write a SQL schema for a library with books, authors, members and loans, and a query for late loans.",
    "Write a Python function for binary search, and three tests for it.",
)

# Parted by blank lines; a text keeps its line breaks.
_PASSAGES = """
The harbour lay quiet in the early morning. Two fishing boats had come in before dawn, and their
crews were carrying boxes of silver herring up the stone steps to the market hall. A woman in a
yellow coat counted the boxes and wrote the numbers into a small blue book. Gulls sat in a row
on the roof and waited for something to fall.

Order 48213 was received on 14 March. It contains three items: one oak desk (120 by 60 cm), two
desk lamps in black, and a set of four drawer handles. The desk will be delivered on 22 March
between 8 and 12 o'clock; the lamps and the handles were sent by post on 15 March and should
arrive within four days.

To clean the filter, switch the machine off and wait until it has cooled down. Open the lid,
turn the filter to the left and lift it out. Rinse it under warm water without soap and let it
dry for a day. Put it back, turn it to the right until it clicks, close the lid and switch the
machine on again.

The committee met on Tuesday evening. Mrs Alvarez reported that the new playground would cost
41,500, which is 3,200 more than planned. Mr Brandt proposed to leave out the second swing.
After a discussion of about an hour, five members voted for the proposal and two against it; one
member was absent.

def moving_average(values, width):
    if width < 1:
        raise ValueError('width must be 1 or more')
    total = 0.0
    averages = []
    for index, value in enumerate(values):
        total += value
        if index >= width:
            total -= values[index - width]
        if index >= width - 1:
            averages.append(total / width)
    return averages

Mercury is the smallest planet and the one closest to the Sun. It goes around the Sun in 88
days, faster than any other planet. Because it has almost no atmosphere to keep the heat, its
surface is 430 degrees hot by day and 180 degrees below zero by night. It has no moons, and its
surface is covered with craters.

Dear Dr Okafor, thank you for your letter of 3 May. I am glad to accept your invitation to speak
at the meeting in Lagos in September. My talk will be about river deltas and will take forty
minutes. I shall need a projector and a table for my maps. I arrive on the evening of the 11th
and leave on the 14th.

Name: Jonas Lindqvist. Born: 9 August 1988 in Uppsala. Occupation: carpenter. Languages:
Swedish, English, some German. Skills: furniture, roof frames, restoration of old windows,
technical drawing. Experience: six years with a boat builder in Gothenburg, then five years with
his own workshop in Malmo.
"""

_SENTENCES = (
    "The train to the coast leaves at a quarter past seven, and the last one back at ten in the evening.",
    "My grandmother kept her recipes in a tin box that nobody else was allowed to open.",
    "Before you plant the seeds, loosen the soil and water it well.",
    "The museum is closed on Mondays, but the garden behind it is open every day.",
    "He had promised to write every week, yet the first letter came only in spring.",
    "If the red lamp is on, do not open the door; wait until the machine has stopped.",
    "Three of the five windows were broken in the storm, and the roof had lost some tiles.",
    "She learned to sail before she could ride a bicycle, because the lake was closer than the road.",
)
_LANGUAGES = ("French", "German", "Spanish", "Italian", "Portuguese", "Dutch", "Polish", "Swedish")

_TEXTS = tuple(_PASSAGES.strip().split("\n\n"))


def _long(number: int) -> str:
    """All passages, beginning with another one each time, and a question about them: some 700 tokens."""
    texts = _TEXTS[number:] + _TEXTS[:number]
    return "Read these texts.\n\n" + "\n\n".join(texts) + "\n\nWrite a summary of each of them."


PROMPT_SETS: dict[str, tuple[str, ...]] = {
    "chat": _CHAT,
    "code": _CODE,
    "copy": tuple(f"Repeat the following text word for word, and nothing else.\n\n{text}" for text in _TEXTS),
    "translation": tuple(
        f"Translate these sentences into {language}, one a line:\n\n" + "\n".join(_SENTENCES)
        for language in _LANGUAGES
    ),
    "long": tuple(_long(number) for number in range(len(_TEXTS))),
    "schema": SCHEMA_PROMPTS,
}
