"""The figures of the first page."""

from longspan.report.groups import board_groups
from longspan.report.landing import who_is_good
from longspan.report.look import looks
from longspan.report.marks import PointsMark
from tests.results.factory import make_card


def test_rows_of_one_mechanism_with_other_options_have_names_of_their_own():
    mechanisms = ["softmax", "local", "local(window=8)"]
    groups = board_groups([make_card(name, accuracy=0.3 + 0.1 * i) for i, name in enumerate(mechanisms)], ())
    picture = who_is_good(groups, looks(mechanisms), {})
    assert picture is not None
    points = [mark for mark in picture.figure.views[0].marks if isinstance(mark, PointsMark)]
    names = {mark.group: mark.name for mark in points}
    assert names["local(window=8)"].endswith(", window=8")
    assert len(set(names.values())) == len(names)
