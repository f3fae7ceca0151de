"""English sentences to embed: everyday prose, questions, headlines and technical text, short and long."""

from __future__ import annotations

# The longest first: from the first sample's range a moving average hardly moves.
CALIBRATION = (
    "Because the train from the north was late, everybody missed the last ferry, and the hotel had a very good night.",
    "After the storm the harbour was full of broken masts, empty crates and gulls arguing over both.",
    "The museum's new wing is made of glass, which the architects defend and the cleaners do not.",
    "My grandmother's recipe calls for twice as much garlic as any sane person would use.",
    "Our flight was delayed, so we spent the night on plastic chairs at gate fourteen.",
    "How do I reset the password of an account I no longer have the phone number for?",
    "Quarterly revenue rose by four percent on strong demand for industrial sensors.",
    "The bakery on the corner opens at six and sells out of rye bread before eight.",
    "The patient was given 200 milligrams twice a day and recovered within a week.",
    "The committee postponed its decision until an independent audit is finished.",
    "Thousands of starlings turned in the evening sky as if they were one animal.",
    "Neural networks with low-precision weights need less memory and less energy.",
    "Add two spoons of sugar, stir slowly, and let the mixture cool for an hour.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "The contract may be ended by either party with thirty days' written notice.",
    "Compile the program with debug symbols and run it again under the profiler.",
    "Is it cheaper to repair a ten-year-old washing machine or to buy a new one?",
    "The bridge was built in 1894 and has been painted without pause ever since.",
    "She tuned the old violin by ear and played until the neighbours came home.",
    "Interest rates were left unchanged, the central bank said on Thursday.",
    "Which medicines should not be taken together with grapefruit juice?",
    "Heavy rain closed the mountain road for the third time this month.",
    "Convolution layers share their weights across the whole image.",
    "Turn left at the second light and park behind the library.",
    "The satellite entered orbit eleven minutes after launch.",
    "What is the difference between a mutex and a semaphore?",
    "Please find attached the minutes of Monday's meeting.",
    "Old letters smell of dust and vanilla.",
    "A good map shows what it leaves out.",
    "He lost the match but won the crowd.",
    "Why do cats purr?",
    "No.",
)

EVALUATION = (
    "A man is playing a guitar on the street.",
    "Someone performs music with a guitar outdoors.",
    "The stock market fell sharply on Monday.",
    "Shares dropped steeply at the start of the week.",
    "How can I learn to cook pasta?",
    "What is the best way to prepare spaghetti?",
    "The phone's processor runs neural networks on a dedicated accelerator.",
    "A special chip in the smartphone executes machine learning models.",
    "Two dogs are chasing a ball across the snow.",
    "The ancient library burned down and its scrolls were lost.",
    "Quantum computers use qubits instead of ordinary bits.",
    "It will probably rain tomorrow, so take an umbrella and wear the boots that do not leak.",
)
