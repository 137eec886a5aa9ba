"""Series: the published parts and windows, the same table from every layout, and errors that name what is wrong."""

import contextlib
import csv
import hashlib
import io
import lzma
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core import remote
from longspan.core.errors import CorruptFile, DataMissing, UsageError
from longspan.datasets import ecl, etth1, get, weather
from longspan.datasets.base import SPLITS
from longspan.datasets.series import Data, Series, months, read_table, standardise, tenths, time_features
from tests.loopback import Page, serving

NAMES = ("etth1", "etth2", "ettm1", "weather", "ecl")
SMALL = Data(past=6, prefix=3, horizon=4, train=40, valid=10, test=10, standin=True)
ROWS = 120
COLUMNS = {"etth1": etth1.Etth1.columns, "weather": weather.Weather.columns}
BORDERS = ((0, 60), (60, 80), (80, 100))
BEGIN = datetime(2016, 2, 28, 20, tzinfo=UTC)


@pytest.fixture
def short(monkeypatch):
    """Corpora of 120 rows, and no pauses."""
    for name in NAMES:
        monkeypatch.setattr(type(get(name)), "rows", ROWS)
        monkeypatch.setattr(type(get(name)), "borders", BORDERS)
    monkeypatch.setattr(remote, "PAUSES_S", (0.0,))
    monkeypatch.setenv("no_proxy", "*")


def numbers(columns: int, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(7).normal(5, 3, (rows, columns)).round(4)


def table(names, values, *, form="%Y-%m-%d %H:%M:%S", end="\n", begin=BEGIN, step=3_600) -> bytes:
    lines = [",".join(["date", *names])]
    for place, row in enumerate(values):
        lines.append(",".join([(begin + timedelta(seconds=step * place)).strftime(form), *map(repr, row.tolist())]))
    return "".join(line + end for line in lines).encode()


# ---------------------------------------------------------------------------------------------------- parts and windows


@pytest.mark.parametrize(
    "name, borders",
    [
        ("etth1", ((0, 8_640), (8_640, 11_520), (11_520, 14_400))),
        ("etth2", ((0, 8_640), (8_640, 11_520), (11_520, 14_400))),
        ("ettm1", ((0, 34_560), (34_560, 46_080), (46_080, 57_600))),
        ("weather", ((0, 24_544), (24_544, 28_052), (28_052, 35_064))),
        ("ecl", ((0, 18_412), (18_412, 21_044), (21_044, 26_304))),
    ],
)
def test_the_parts_are_the_published_ones(name, borders):
    assert series(name).borders == borders


def series(name) -> Series:
    found = get(name)
    assert isinstance(found, Series)
    return found


@given(st.integers(10, 100_000))
def test_tenths_share_every_row_once(rows):
    (a, b), (c, d), (e, f) = tenths(rows)
    assert (a, b, d, f) == (0, c, e, rows)
    assert (b, f - e) == (int(rows * 7 // 10), int(rows * 2 // 10))


def test_months_have_thirty_days():
    assert months(1, 2, 3, per_day=24) == ((0, 720), (720, 2_160), (2_160, 4_320))


@given(
    past=st.integers(1, 12),
    horizon=st.integers(1, 12),
    whole=st.integers(1, 5),
    wanted=st.none() | st.integers(1, 60),
)
@settings(deadline=None)
def test_windows_begin_at_every_row_and_their_future_lies_in_their_part(past, horizon, whole, wanted):
    corpus = series("etth1")
    data = Data(past, past, horizon, whole_batches=whole, train=wanted, valid=wanted, test=wanted)
    for split, (first, end) in zip(SPLITS, BORDERS, strict=True):
        rows = end - first + (0 if split == "train" else past)
        there = rows - past - horizon + 1  # as the specification counts them
        there -= 0 if split == "train" else there % whole
        starts = corpus._starts((first, end), split, data)
        assert len(starts) == (there if wanted is None else min(there, wanted))
        assert starts[0] + past == (past if split == "train" else first)
        assert starts[-1] + past + horizon <= end
        assert np.all(np.diff(starts) == 1) if wanted is None else np.all(np.diff(starts) >= 1)


def test_windows_longer_than_a_part_are_refused():
    with pytest.raises(UsageError, match="valid part of ETTh1 has no window with past=4 and horizon=2881"):
        get("etth1").counts(Data(4, 4, 2_881))


@pytest.mark.parametrize(
    "name, lengths, counts, kept",
    [  # windows, and how many of validation and test make full batches of 32
        ("etth1", (336, 720), (7_585, 2_161, 2_161), (2_144, 2_144)),
        ("etth1", (168, 720), (7_753, 2_161, 2_161), (2_144, 2_144)),
        ("etth2", (720, 720), (7_201, 2_161, 2_161), (2_144, 2_144)),
        ("ettm1", (672, 672), (33_217, 10_849, 10_849), (10_848, 10_848)),
        ("ecl", (336, 960), (17_117, 1_673, 4_301), (1_664, 4_288)),
        ("weather", (720, 720), (23_105, 2_789, 6_293), (2_784, 6_272)),
    ],
)
def test_there_are_as_many_windows_as_the_specification_counts(name, lengths, counts, kept):
    past, horizon = lengths
    assert tuple(get(name).counts(Data(past, past, horizon)).values()) == counts
    whole = get(name).counts(Data(past, past, horizon, whole_batches=32))
    assert tuple(whole.values()) == (counts[0], *kept)


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"past": 0}, "past=0"),
        ({"horizon": -1}, "horizon=-1"),
        ({"prefix": 7}, "prefix=7 and past=6"),
        ({"whole_batches": 0}, "whole_batches=0"),
        ({"variables": "some"}, "variables='some'"),
        ({"train": 0}, "train=0"),
        ({"valid": None}, "give train, valid and test"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, sentence):
    with pytest.raises(UsageError, match=sentence):
        replace(SMALL, **wrong)


# ------------------------------------------------------------------------------------------------------- scale and time


@given(st.integers(2, 40), st.integers(1, 5), st.integers(0, 1_000))
def test_the_training_rows_alone_decide_the_scale(learned, columns, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(100, 20, (learned + 30, columns))
    scaled = standardise(values, slice(0, learned)).astype(np.float64)
    np.testing.assert_allclose(scaled[:learned].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose((scaled[:learned] ** 2).mean(axis=0), 1, rtol=1e-5)  # the population standard deviation
    values[learned:] = 1e6
    np.testing.assert_array_equal(standardise(values, slice(0, learned))[:learned], scaled[:learned].astype(np.float32))


def test_a_column_that_never_changes_stays_finite():
    values = np.array([[3.0, 1.0], [3.0, 2.0], [4.0, 3.0]])
    np.testing.assert_array_equal(standardise(values, slice(0, 2))[:, 0], [0, 0, 1])


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)))
def test_time_features_are_those_of_the_calendar(moment):
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    (found,) = time_features(np.array([int(moment.timestamp())]))
    day = moment.timetuple()
    expected = (day.tm_hour / 23, day.tm_wday / 6, (day.tm_mday - 1) / 30, (day.tm_yday - 1) / 365)
    np.testing.assert_allclose(found, np.array(expected) - 0.5, atol=1e-6)


# -------------------------------------------------------------------------------------------------------------- layouts


def write_csv(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def write_xz(folder, name, content):
    (folder / f"{name}.xz").write_bytes(lzma.compress(content))
    return folder / f"{name}.xz"


def write_folder(folder, name, content):
    return write_csv(folder, name, content).parent


def write_nested(folder, name, content):
    (folder / "ETT-small").mkdir()
    write_xz(folder / "ETT-small", name, content)
    return folder


def write_zip(folder, name, content):
    with zipfile.ZipFile(folder / "informer.zip", "w") as archive:
        archive.writestr(f"informer/some/{name}", content)
        archive.writestr("informer/other/else.csv", b"nothing")
    return folder / "informer.zip"


LAYOUTS = (write_csv, write_xz, write_folder, write_nested, write_zip)
DATA = Data(past=6, prefix=3, horizon=4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_numbers_of_the_table(layout, short, tmp_path):
    values = numbers(7)
    (tmp_path / "mine").mkdir()
    path = layout(tmp_path / "mine", "ETTh1.csv", table(COLUMNS["etth1"], values))
    splits = get("etth1").import_from(path, DATA, root=tmp_path / "data")
    assert splits.variant == "imported"
    assert splits.counts == {"train": 51, "valid": 17, "test": 17}
    mean, deviation = values[:60].mean(axis=0), values[:60].std(axis=0)
    past, future = splits.test.example(3)
    np.testing.assert_allclose(past, (values[77:83] - mean) / deviation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(future, (values[83:87] - mean) / deviation, rtol=1e-5, atol=1e-6)
    assert get("etth1").verify(DATA, root=tmp_path / "data") == []


@pytest.mark.parametrize(
    "form, end", [("%m/%d/%Y %H:%M", "\n"), ("%Y/%m/%d %H:%M", "\r\n"), ("%Y-%m-%dT%H:%M:%S", "\r\n")]
)
def test_dates_and_line_ends_may_be_written_otherwise(form, end):
    values = numbers(2)
    plain = read_table(table(("a", "b"), values), "here")
    other = read_table(b"\xef\xbb\xbf" + table(("a", "b"), values, form=form, end=end) + end.encode(), "here")
    assert plain[0] == other[0] == ["a", "b"]
    for one, two in zip(plain[1:], other[1:], strict=True):
        np.testing.assert_array_equal(one, two)
    assert plain[1][0] == int(BEGIN.timestamp())


def test_the_order_of_columns_does_not_matter(short, tmp_path):
    names, values = COLUMNS["weather"], numbers(12)
    turned = table(names[::-1], values[:, ::-1])
    one = get("weather").import_from(write_csv(tmp_path, "WTH.csv", table(names, values)), DATA, root=tmp_path / "one")
    two = get("weather").import_from(write_csv(tmp_path, "WTH.csv", turned), DATA, root=tmp_path / "two")
    np.testing.assert_array_equal(one.train.values, two.train.values)


@pytest.mark.parametrize("target, place", [("MT_320", 0), ("OT", 2)])
def test_some_clients_with_the_target_serve_univariate_forecasts_alone(target, place, short, tmp_path):
    names, values = ["a", "b"], numbers(3)
    names.insert(place, target)
    path = write_csv(tmp_path, "some.csv", table(names, values))
    target_only = replace(DATA, variables="target")
    splits = get("ecl").import_from(path, target_only, root=tmp_path)
    column = values[:, place : place + 1]
    np.testing.assert_allclose(splits.train.values, standardise(column, slice(0, 60)))
    with pytest.raises(UsageError, match="has 3 of 321 variables, enough to forecast the target alone"):
        get("ecl").load(DATA, root=tmp_path)
    assert not get("ecl").status(DATA, root=tmp_path).ready
    assert get("ecl").status(target_only, root=tmp_path).ready


def without(line: int, content: bytes) -> bytes:
    rows = content.splitlines(keepends=True)
    return b"".join(rows[:line] + rows[line + 1 :])


def swap(old: bytes, new: bytes, line: int, content: bytes) -> bytes:
    rows = content.splitlines(keepends=True)
    rows[line] = rows[line].replace(old, new, 1)
    return b"".join(rows)


def cell(new: bytes, line: int, content: bytes) -> bytes:
    rows = content.splitlines(keepends=True)
    date, _, *rest = rows[line].split(b",")
    rows[line] = b",".join([date, new, *rest])
    return b"".join(rows)


@pytest.mark.parametrize(
    "spoil, sentence",
    [
        (lambda c: b"", "line 1: expected a header of date and names"),
        (lambda c: c[:40], "line 2: expected a date and 7 numbers, found 0"),
        (lambda c: c.splitlines()[0], "there are no rows after the header"),
        (lambda c: swap(b"HULL", b"HUL", 0, c), "missing: HULL, unknown: HUL"),
        (lambda c: swap(b"OT", b"TO", 0, c), "expected the target in a column OT, found"),
        (lambda c: swap(b"HULL", b"HUFL", 0, c), "expected a header of date and names"),
        (lambda c: swap(b"date", b"time", 0, c), "expected a header of date and names"),
        (lambda c: without(5, c), "expected 120 rows of data, found 119"),
        (lambda c: c + c.splitlines(keepends=True)[-1], "expected 120 rows of data, found 121"),
        (lambda c: cell(b"warm", 9, c), "line 10: expected numbers, found b'warm'"),
        (lambda c: cell(b"", 9, c), "line 10: expected numbers, found b''"),
        (lambda c: cell(b"nan", 9, c), "line 10: expected numbers, found b'nan'"),
        (lambda c: cell(b"1e999", 9, c), "line 10: expected numbers, found b'1e999'"),
        (lambda c: cell(b"1,2", 9, c), "line 10: expected a date and 7 numbers, found 8"),
        (lambda c: swap(b"2016-02-29", b"2017-02-29", 9, c), "line 10: expected a date, found b'2017-02-29"),
        (lambda c: swap(b"2016-02-29", b"yesterday", 9, c), "line 10: expected a date, found b'yesterday"),
        (lambda c: swap(b"2016-02-29 04", b"2016-02-29 03", 9, c), "line 10: expected a date 60 minutes after"),
        (lambda c: c[:-60] + b"\x00\xff\xfe", "expected"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_and_nothing_is_left(spoil, sentence, short, tmp_path):
    path = write_csv(tmp_path, "ETTh1.csv", spoil(table(COLUMNS["etth1"], numbers(7))))
    with pytest.raises(CorruptFile, match=sentence):
        get("etth1").import_from(path, DATA, root=tmp_path / "data")
    assert not (tmp_path / "data/etth1/whole").exists()


@given(st.binary(max_size=200) | st.text("date,0123456789.-:/ \r\nOTab", max_size=200).map(str.encode))
def test_no_content_makes_the_reader_stumble(content):
    with contextlib.suppress(CorruptFile):
        names, seconds, values = read_table(content, "here")
        assert values.shape == (len(seconds), len(names))
        assert np.isfinite(values).all()


def test_a_damaged_package_is_named(short, tmp_path):
    path = write_xz(tmp_path, "ETTh1.csv", table(COLUMNS["etth1"], numbers(7)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptFile, match=r"ETTh1\.csv\.xz cannot be unpacked"):
        get("etth1").import_from(path, DATA, root=tmp_path)


def test_a_folder_without_the_table_says_what_it_looked_for(tmp_path):
    with pytest.raises(DataMissing, match=r"neither ECL\.csv nor electricity\.csv"):
        get("ecl").import_from(tmp_path, root=tmp_path / "data")


# ------------------------------------------------------------------------------------------------------------- download


def test_the_official_table_is_downloaded_and_known_by_its_digest(short, tmp_path, monkeypatch):
    content = table(COLUMNS["etth1"], numbers(7))
    known = replace(etth1.Etth1.source, size=len(content), sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(etth1.Etth1, "source", known)
    with serving({"ETTh1.csv": Page(content, drops=[500])}) as server, remote.mirrored(server.url):
        splits = get("etth1").prepare(DATA, root=tmp_path)
        assert splits.variant == "official"
        asked = len(server.seen)
        assert get("etth1").prepare(DATA, root=tmp_path).sha256 == splits.sha256
        assert len(server.seen) == asked  # files already present are not requested again
    monkeypatch.setattr(etth1.Etth1, "source", replace(known, sha256="0" * 64))
    with serving({"ETTh1.csv": Page(content)}) as server, remote.mirrored(server.url), pytest.raises(CorruptFile):
        get("etth1").prepare(DATA, root=tmp_path / "other")


def test_weather_comes_out_of_the_archive_of_several_tables(short, tmp_path):
    content = write_zip(tmp_path, "WTH.csv", table(COLUMNS["weather"], numbers(12))).read_bytes()
    with serving({"informer.zip": Page(content)}) as server, remote.mirrored(server.url):
        assert get("weather").prepare(DATA, root=tmp_path / "data").counts["train"] == 51
        with pytest.raises(DataMissing, match=r"has no ECL\.csv"):
            get("ecl").prepare(DATA, root=tmp_path / "data")


@pytest.mark.parametrize("corpus", [ecl.Ecl, weather.Weather])
def test_a_page_in_place_of_the_archive_says_how_to_bring_it_by_hand(corpus, short, tmp_path):
    page = Page(b"<!doctype html><p>cannot scan for viruses", headers={"Content-Type": "text/html"})
    sentence = f"web page.*longspan data import {corpus().name} PATH"
    with (
        serving({"informer.zip": page}) as server,
        remote.mirrored(server.url),
        pytest.raises(DataMissing, match=sentence),
    ):
        corpus().prepare(DATA, root=tmp_path)


# ------------------------------------------------------------------------------------------------------------ stand-ins


@pytest.mark.parametrize("name", NAMES)
def test_absent_data_is_an_error_and_stand_ins_are_marked_and_barred(name, tmp_path):
    with pytest.raises(DataMissing, match=f"longspan data prepare {name} .* longspan data import {name} PATH"):
        get(name).load(replace(SMALL, standin=False), root=tmp_path)
    assert list(tmp_path.iterdir()) == []
    made = get(name).load(SMALL, root=tmp_path)
    assert made.variant == "standin"
    assert made.counts == {"train": 40, "valid": 10, "test": 10} == get(name).counts(SMALL)
    assert made.train.values.shape[1] == series(name).width
    assert get(name).status(SMALL, root=tmp_path).variant == "standin"
    with pytest.raises(DataMissing):
        get(name).load(SMALL, root=tmp_path, real=True)


def test_stand_ins_are_the_same_in_every_version(tmp_path):
    """If this fails, increment `generator`: older cards refer to other data."""
    shard = get("etth1").make_shard(SMALL, 0)
    assert hashlib.sha256(shard.tokens.tobytes()).hexdigest()[:16] == "5b2af8ed55d6d211"
    one, other = (get("etth1").load(replace(SMALL, seed=seed), root=tmp_path) for seed in (0, 1))
    assert one.sha256 != other.sha256


def test_samples_are_shown_in_words_and_drawn_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path / "data"))
    samples = get("etth1").samples(SMALL, 3, seed=1)
    assert [0 <= sample.label < 40 for sample in samples] == [True] * 3
    assert all(str(sample.content).startswith("2016-07-0") and " | " in str(sample.content) for sample in samples)
    picture = get("etth1").draw_samples(SMALL, 3, tmp_path / "x.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "data").exists()


# ------------------------------------------------------------------------------------------------------------ real data


@pytest.mark.full
@pytest.mark.parametrize("name, variant", [("etth2", "official"), ("ettm1", "official"), ("weather", "imported")])
def test_the_real_tables_are_read_and_known(name, variant, reference, tmp_path):
    assert get(name).import_from(reference("timeseries"), root=tmp_path).variant == variant


def test_real_windows_are_those_of_an_independent_reading(reference, tmp_path):
    path = reference("timeseries/ETTh1.csv.xz")
    rows = list(csv.DictReader(io.StringIO(lzma.decompress(path.read_bytes()).decode())))
    heat = [float(row["OT"]) for row in rows]
    mean = sum(heat[:8_640]) / 8_640
    deviation = (sum((value - mean) ** 2 for value in heat[:8_640]) / 8_640) ** 0.5
    data = Data(168, 168, 720, variables="target")
    splits = get("etth1").import_from(path, data, root=tmp_path)
    assert splits.variant == "official"
    for split, border in (("valid", 8_640), ("test", 11_520)):
        windows = getattr(splits, split)
        past, future = windows.example(100)
        now = border + 100
        expected = [(value - mean) / deviation for value in heat[now - 168 : now + 720]]
        np.testing.assert_allclose(np.concatenate([past, future])[:, 0], expected, rtol=1e-5, atol=1e-6)
        when = datetime.fromisoformat(rows[now]["date"])
        hour, weekday = windows.times[windows.starts[100] + 168][:2]
        assert (hour + 0.5) * 23 == pytest.approx(when.hour, abs=1e-4)
        assert (weekday + 0.5) * 6 == pytest.approx(when.weekday(), abs=1e-4)
