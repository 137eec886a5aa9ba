"""TextGrids: phones with their frames, silences at the ends trimmed, and an error for files that are no alignment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile
from longspan.datasets.speech.textgrid import Alignment, read_textgrid

LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = {end}
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "words"
        xmin = 0
        xmax = {end}
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = {end}
            text = "say ""phones"" now"
    item [2]:
        class = "IntervalTier"
        name = "phones"
        xmin = 0
        xmax = {end}
        intervals: size = {count}
{rows}"""
ROW = """        intervals [{n}]:
            xmin = {a}
            xmax = {b}
            text = "{label}"
"""


def textgrid(intervals):
    rows = "".join(ROW.format(n=n, a=a, b=b, label=label) for n, (a, b, label) in enumerate(intervals, start=1))
    return LONG.format(end=intervals[-1][1] if intervals else 0, count=len(intervals), rows=rows).encode()


def short(intervals):
    head = f'File type = "ooTextFile"\n"TextGrid"\n0\n{intervals[-1][1]}\n<exists>\n1\n"IntervalTier"\n"phones"\n'
    head += f"0\n{intervals[-1][1]}\n{len(intervals)}\n"
    return (head + "".join(f'{a}\n{b}\n"{label}"\n' for a, b, label in intervals)).encode()


SPOKEN = [(0, 0.1, "sil"), (0.1, 0.25, "AH0"), (0.25, 0.3, ""), (0.3, 0.5, "spn"), (0.5, 0.75, "T"), (0.75, 1.0, "sp")]


@pytest.mark.parametrize("write", [textgrid, short])
def test_silences_at_the_ends_go_and_those_inside_stay(write):
    found = read_textgrid(write(SPOKEN), "x", 1.0)
    assert found.phones == ("AH0", "sp", "spn", "T")
    assert found.times == (0.1, 0.25, 0.3, 0.5, 0.75)
    assert found.samples(22_050) == slice(2205, 16537)


def test_a_phone_from_a_tenth_to_a_quarter_of_a_second_lasts_13_frames():
    assert Alignment(("AH0",), (0.10, 0.25)).durations(22_050, 256) == [13]


@given(st.lists(st.floats(0.001, 2.0), min_size=1, max_size=20))
def test_durations_add_up_to_the_frames_between_the_ends(lengths):
    times = [0.0]
    for length in lengths:
        times.append(times[-1] + length)
    alignment = Alignment(("AH0",) * len(lengths), tuple(times))
    assert sum(alignment.durations(22_050, 256)) == round(times[-1] * 22_050 / 256)


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"", "it does not begin as a TextGrid"),
        (b"\xff\xff\x00", "it is not text"),
        (textgrid(SPOKEN).replace(b'"phones"\n', b'"phonemes"\n'), "it has no tier 'phones'"),
        (textgrid(SPOKEN)[:-60], "its tier 'phones' is cut off or malformed"),
        (textgrid([(0, 1, "sil")]), "the tier 'phones' has no phones"),
        (textgrid([]), "the tier 'phones' has no phones"),
        (textgrid([(0, 0.5, "AH0"), (0.4, 1, "T")]), "does not follow 0.5 s"),
        (textgrid([(0, 0.5, "AH0"), (0.5, 0.5, "T")]), "from 0.5 to 0.5 s does not follow"),
        (textgrid([(0, 0.5, "hello")]), "'hello' is no ARPAbet phone"),
        (textgrid([(0, 5, "AH0")]), "its last phone ends at 5 s, but the clip lasts 1.000 s"),
    ],
)
def test_what_is_no_alignment_of_the_clip_is_told_in_a_sentence(content, sentence):
    with pytest.raises(CorruptFile, match=f"x.TextGrid is no alignment of this clip: .*{sentence}.*get it again"):
        read_textgrid(content, "x.TextGrid", 1.0)


@given(st.binary(max_size=60), st.integers(0, 900))
def test_no_content_makes_the_reader_stumble(noise, place):
    whole = textgrid(SPOKEN)
    try:
        read_textgrid(whole[:place] + noise + whole[place:], "x", 1.0)
    except CorruptFile:
        return
