"""Short texts to answer from and to summarise, written for this project, with a question to each.

They say nothing that a model could know by heart: names and figures are invented, so an answer must be copied.
"""

from __future__ import annotations

from typing import NamedTuple


class Passage(NamedTuple):
    """A text, and a question whose answer is one of its sentences."""

    title: str
    text: str
    question: str


PASSAGES = (
    Passage(
        "The lighthouse at Karrow Point",
        "The lighthouse at Karrow Point was built in 1871 by the brothers Anselm and Piet Doorne. Its lamp first "
        "burned rapeseed oil, which the keeper carried up the 194 steps every evening. In the winter of 1903 the "
        "stairs froze over, and for nine nights the keeper's daughter Wilma lit the lamp by climbing a rope on the "
        "outer wall. The harbour council gave her a silver whistle, which is still shown in the town hall of Karrow. "
        "The lamp was changed to electric light in 1938, and since 1991 the tower has had no keeper at all. Today a "
        "volunteer group opens the gallery on the first Sunday of every month.",
        "How was the lamp lit when the stairs froze over?",
    ),
    Passage(
        "The Tellan cheese cooperative",
        "The Tellan cooperative makes a hard cheese from the milk of 412 goats that graze above the tree line. The "
        "milk is heated to 34 degrees in copper kettles and curdled with an extract of wild thistle. Each wheel "
        "weighs close to six kilograms and is turned by hand twice a week for eleven months. Because the caves of "
        "Tellan are dry, the rind is washed with a brine that contains walnut leaves. The cooperative sold 3,900 "
        "wheels last year, most of them to restaurants in the valley. Its members vote every spring on the price, and "
        "each member has one vote, whatever the size of the herd.",
        "What is the rind washed with, and why?",
    ),
    Passage(
        "Night trains on the Orsova line",
        "The Orsova line reopened its night trains in March after a pause of fourteen years. A train leaves Belmar at "
        "22:40 and reaches the coast at 07:15, with a single stop at Hollin to change the engine. The sleeping cars "
        "were rebuilt from old mail wagons, and each compartment keeps the brass hooks on which the mail bags hung. "
        "Tickets cost 48 crowns for a seat and 95 crowns for a bed, and bicycles travel free from October to April. "
        "In its first season the line carried 61,200 passengers, nearly twice the number the operator had planned "
        "for. A second departure on Fridays is being prepared.",
        "When do bicycles travel free?",
    ),
    Passage(
        "The library of borrowed tools",
        "In the old fire station of Quill Street there is a library that lends tools instead of books. It owns 1,730 "
        "items, from tile cutters to a machine that bends copper pipe. Members pay twelve coins a year and may keep a "
        "tool for eight days. The most wanted object is a carpet cleaner named Bertha, which has a waiting list of "
        "five weeks. Every returned tool is tested on a bench by retired mechanics, who repair about thirty of them a "
        "month. Since the library opened, the recycling yard next door has counted a fifth less broken machines.",
        "How long may members keep a tool?",
    ),
    Passage(
        "Counting the herons of Lake Ammer",
        "Every February forty people walk around Lake Ammer and count herons. They start at dawn from eight places "
        "and write down the time, the direction of flight and the number of birds. Two groups that meet compare their "
        "notes, so that no heron is counted twice. In 1987 they found 23 pairs; last year there were 158. The birds "
        "nest on the northern shore, in alders that the owner of the sawmill has promised not to cut before 2050. The "
        "count is led by Doctor Ilse Varga, who began as a schoolgirl and has missed it only once, because of a "
        "broken ankle.",
        "Why do two groups that meet compare their notes?",
    ),
    Passage(
        "How the clock of Sarn is set",
        "The clock on the market hall of Sarn runs four minutes ahead on purpose. In 1846 the mail coach left too "
        "often without the letters of the upper town, and the mayor had the hands moved forward. When the railway "
        "came, the stationmaster asked for the true time, but the council voted to keep the four minutes by nine "
        "votes to eight. The weights of the clock are two stones from the river, each of 61 kilograms, and they are "
        "wound up every third day. Visitors are told about it on a small enamel sign beside the door. People of Sarn "
        "say that a punctual person is someone who arrives four minutes early without knowing it.",
        "Why does the clock run four minutes ahead?",
    ),
    Passage(
        "A wind farm without a fence",
        "The wind farm on the Hessel plateau has nineteen turbines and not a single fence. Sheep of three villages "
        "graze between the towers and keep the grass short, which saves the operator 70,000 a year. Each turbine "
        "stops by itself when a camera on its mast sees a kite or an eagle within 400 metres. During the first two "
        "years the turbines were stopped 2,916 times, for an average of 96 seconds. The loss of energy was 0.4 "
        "percent, far less than the three percent that had been feared. The camera was developed by two students from "
        "Norrby, who gave the design away.",
        "When does a turbine stop by itself?",
    ),
    Passage(
        "The bread tax of Immerau",
        "From 1712 to 1739 the town of Immerau taxed bread by its shape and not by its weight. Round loaves paid one "
        "penny, long loaves paid two, and whatever the clerk could not name paid three. The bakers answered with a "
        "loaf that was round from above and long from the side, and it was argued about for six years. In the end the "
        "court of Leuen decided that a loaf is what it is when it lies on the table. The loaf is still baked every "
        "Saturday and is called a verdict. Its recipe asks for rye, wheat, caraway and a spoon of malt.",
        "What did the court of Leuen decide?",
    ),
    Passage(
        "Rain for the Mirador gardens",
        "The Mirador gardens collect the rain of eleven roofs in a cistern below the rose terrace. The cistern holds "
        "240 cubic metres, enough to water the gardens for thirty-eight days without rain. A float on a chain moves a "
        "painted fish on the wall, so that everybody can see how much water is left. When the fish reaches the lower "
        "line, the fountains are turned off first and the lawns second. The orange trees are never without water, "
        "because the oldest of them was planted in 1689. Last summer the fish stayed above the line for the first "
        "time in seven years.",
        "What is turned off first when the fish reaches the lower line?",
    ),
    Passage(
        "The school that meets on a ferry",
        "The children of the Skerra islands have their lessons on a ferry. The boat leaves Outer Skerra at half past "
        "seven, picks up pupils at five piers and is back at three in the afternoon. There are two classrooms below "
        "deck, and the wheelhouse is used for geography. On days with waves above two metres the teacher, Jonna "
        "Aalto, holds class by radio from her kitchen. In twenty-two years the ferry has missed only 31 days of "
        "school. The timetable is painted on the funnel, and the captain rings the bell between lessons.",
        "What happens on days with waves above two metres?",
    ),
)
