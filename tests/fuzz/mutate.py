"""Mutation of valid inputs by cutting, repeating and changing, for the fuzzers of parsers in
Python."""


def mutated(rng, seeds, words, limit=60000, most_seeds=3, most_changes=6):
    """Concatenate up to `most_seeds` seeds and make up to `most_changes` changes."""
    data = bytearray(b"".join(rng.choices(seeds, k=rng.randint(1, most_seeds))))
    for _ in range(rng.randint(0, most_changes)):
        at, upto = sorted(rng.randint(0, len(data)) for _ in range(2))
        kind = rng.randrange(5)
        if kind == 0:
            del data[at : min(upto, at + 40)]
        elif kind == 1:
            data[at:at] = rng.choice(words)
        elif kind == 2:
            data[at:at] = data[at:upto] * rng.randint(1, 3)
        elif kind == 3 and data:
            data[at % len(data)] = rng.randrange(256)
        else:
            del data[at:]
    return bytes(data[:limit])
