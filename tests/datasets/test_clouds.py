"""Files of clouds and meshes, points on surfaces, and what the camera sees; errors name what is wrong with a file."""

import contextlib
import lzma
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.core.errors import CorruptFile
from longspan.datasets.clouds import camera, surface
from longspan.datasets.clouds.files import ENDINGS, read_npz, read_shape
from longspan.datasets.clouds.mesh import Mesh, read_obj, read_off
from longspan.datasets.clouds.pcd import read_pcd
from longspan.datasets.clouds.ply import read_ply

HEADER = b"""# .PCD v0.7 - Point Cloud Data file format
VERSION 0.7
FIELDS x y z
SIZE 4 4 4
TYPE F F F
COUNT 1 1 1
WIDTH 2
HEIGHT 1
VIEWPOINT 0 0 0 1 0 0 0
POINTS 2
DATA ascii
"""
ROWS = b"1 2 3\n-4 5.5 6e-1\n"
POINTS = np.array([[1, 2, 3], [-4, 5.5, 0.6]], np.float32)
CUBE = Mesh(
    np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], np.float32),
    np.array(
        [
            *([0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1]),
            *([2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]),
        ]
    ),
)

# ----------------------------------------------------------------------------------------------------------------- PCD


def test_a_pcd_file_of_text_and_one_of_bytes_hold_the_same_points():
    binary = HEADER.replace(b"ascii", b"binary") + POINTS.tobytes()
    for content in (HEADER + ROWS, binary):
        np.testing.assert_array_equal(read_pcd(content, "x.pcd"), POINTS)


def test_other_fields_of_a_pcd_file_are_skipped():
    header = HEADER.replace(b"x y z", b"rgb x normal y z").replace(b"SIZE 4 4 4", b"SIZE 4 4 8 4 4")
    header = header.replace(b"F F F", b"U F F F F").replace(b"COUNT 1 1 1", b"COUNT 1 1 2 1 1")
    rows = b"".join(struct.pack("<Ifddff", 7, x, 0.5, 0.5, y, z) for x, y, z in POINTS)
    np.testing.assert_array_equal(read_pcd(header.replace(b"ascii", b"binary") + rows, "x.pcd"), POINTS)
    rows = b"".join(b"7 %f 0 0 %f %f\n" % tuple(point) for point in POINTS)
    np.testing.assert_allclose(read_pcd(header + rows, "x.pcd"), POINTS)


@given(st.lists(st.tuples(*[st.floats(-1e3, 1e3, width=32)] * 3), min_size=1, max_size=20))
def test_whatever_is_written_as_pcd_is_read_back(points):
    header = HEADER.replace(b"WIDTH 2", b"WIDTH %d" % len(points)).replace(b"POINTS 2", b"POINTS %d" % len(points))
    rows = "".join(f"{x!r} {y!r} {z!r}\n" for x, y, z in points).encode()
    np.testing.assert_array_equal(read_pcd(header + rows, "x.pcd"), np.array(points, np.float32))


@pytest.mark.parametrize(
    "old, new, words",
    [
        (b"FIELDS x y z", b"FIELDS x y w", "should name the fields x, y and z once, found 'x y w'"),
        (b"FIELDS x y z\n", b"", "the PCD header has no FIELDS"),
        (b"POINTS 2", b"POINTS 3", "says 3 points and 2 x 1 of them"),
        (b"WIDTH 2\nHEIGHT 1", b"WIDTH 3\nHEIGHT 1", "says 2 points and 3 x 1"),
        (b"POINTS 2", b"POINTS two", "should have 1 whole numbers after POINTS, found 'two'"),
        (b"DATA ascii", b"DATA binary_compressed", "says DATA 'binary_compressed', where ascii or binary can be read"),
        (b"DATA ascii\n", b"", "has no line DATA"),
        (b"1 2 3\n", b"", "says 2 points, found 1"),
        (b"1 2 3\n", b"1 2\n", "expected rows of numbers"),
        (b"1 2 3\n-4 5.5 6e-1\n", b"1 2\n3 4\n", "expected 3 numbers in a row, found 2"),
        (b"1 2 3\n", b"1 2 nan\n", r"point 1 of 2 is \[1.0, 2.0, nan\], not three finite numbers"),
        (b"1 2 3\n", b"1 2 1e99\n", "not three finite numbers"),
        (b"1 2 3\n", b"one 2 3\n", "expected rows of numbers"),
        (b"DATA ascii", b"DATA binary", "2 points should take 24 bytes, found 18"),
    ],
)
def test_what_is_wrong_with_a_pcd_file_is_said(old, new, words):
    content = (HEADER + ROWS).replace(old, new)
    with pytest.raises(CorruptFile, match=words):
        read_pcd(content, "x.pcd")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files_are_read_or_refused_with_a_sentence(data):
    read, content = data.draw(st.sampled_from(SOUND))
    place, junk = data.draw(st.integers(0, len(content) - 1)), data.draw(st.binary(max_size=6))
    damaged = content[:place] + junk + content[place + data.draw(st.integers(0, 6)) :]
    with contextlib.suppress(CorruptFile):  # anything else is a crash
        shape = read(damaged, "x")
        assert np.isfinite(shape.vertices if isinstance(shape, Mesh) else shape).all()


# -------------------------------------------------------------------------------------------------------------- meshes

OFF = b"OFF\n8 6 0\n" + b"".join(b"%d %d %d\n" % tuple(v) for v in CUBE.vertices.astype(int))
OFF += b"4 0 1 3 2\n4 4 6 7 5\n4 0 4 5 1\n4 2 3 7 6\n4 0 2 6 4\n4 1 5 7 3\n"
OBJ = b"# cube\nmtllib x.mtl\n" + b"".join(b"v %d %d %d\n" % tuple(v) for v in CUBE.vertices.astype(int))
OBJ += b"f 1/1 2/1 4/2 3/1\nf 5//1 7//1 8//2 6\nf 1 5 6 2\nf -6 -5 -1 -2\nf 1 3 7 5\nf 2 6 8 4\n"
PLY_HEAD = "ply\nformat {}\nelement vertex 8\nproperty float x\nproperty float y\nproperty float z\n"
PLY_HEAD += "element face 12\nproperty list uchar int vertex_indices\nend_header\n"


def ply(order: str) -> bytes:
    if order == "ascii":
        rows = [*(" ".join(map(str, v)) for v in CUBE.vertices), *(f"3 {a} {b} {c}" for a, b, c in CUBE.triangles)]
        return PLY_HEAD.format("ascii 1.0").encode() + "\n".join(rows).encode() + b"\n"
    sign, name = ("<", "little") if order == "little" else (">", "big")
    body = CUBE.vertices.astype(f"{sign}f4").tobytes()
    body += b"".join(struct.pack(f"{sign}Biii", 3, *triangle) for triangle in CUBE.triangles)
    return PLY_HEAD.format(f"binary_{name}_endian 1.0").encode() + body


SOUND = [(read_pcd, HEADER + ROWS), (read_off, OFF), (read_obj, OBJ), (read_ply, ply("ascii")), (read_ply, ply("big"))]


@pytest.mark.parametrize(
    "mesh",
    [
        read_off(OFF, "cube.off"),
        read_off(OFF.replace(b"OFF\n8", b"OFF8"), "cube.off"),
        read_obj(OBJ, "cube.obj"),
        *(read_ply(ply(order), "cube.ply") for order in ("ascii", "little", "big")),
    ],
)
def test_a_cube_is_the_same_in_every_kind_of_file(mesh):
    trimesh = pytest.importorskip("trimesh")
    assert len(mesh.triangles) == 12
    solid = trimesh.Trimesh(mesh.vertices, mesh.triangles)
    assert solid.is_watertight
    assert solid.area == pytest.approx(6)


@pytest.mark.parametrize("ending, content", [("off", OFF), ("obj", OBJ), ("ply", ply("little")), ("ply", ply("ascii"))])
def test_meshes_are_read_as_trimesh_reads_them(ending, content, tmp_path):
    trimesh = pytest.importorskip("trimesh")
    path = tmp_path / f"cube.{ending}"
    path.write_bytes(content)
    theirs, ours = trimesh.load(path, process=False, force="mesh"), read_shape(path)
    assert trimesh.Trimesh(ours.vertices, ours.triangles).area == pytest.approx(theirs.area)


def test_a_ply_file_without_faces_is_a_cloud():
    content = ply("ascii").split(b"element face")[0] + b"end_header\n" + b"1 2 3\n" * 8
    assert read_ply(content, "x.ply").tolist() == [[1, 2, 3]] * 8


@pytest.mark.parametrize(
    "read, content, words",
    [
        (read_off, b"COFF\n", "does not begin with OFF"),
        (read_off, b"OFF\n", "expected the numbers of vertices and faces after OFF, found nothing"),
        (read_off, OFF.replace(b"8 6 0", b"8 9 0"), "says 8 vertices and 9 faces, but has 14 lines"),
        (read_off, OFF.replace(b"8 6 0", b"99999999 6 0"), "says 99999999 vertices"),
        (read_off, OFF.replace(b"4 0 1 3 2", b"4 0 1 3 8"), "a face has vertex 8, but there are only 8"),
        (read_off, OFF.replace(b"4 0 1 3 2", b"5 0 1 3 2"), "a number of vertices and as many of them"),
        (read_off, b"OFF\n1 0 0\n0 0 0\n", "has no faces, so there is no surface"),
        (read_obj, b"v 0 0 0\nf 1 1 x\n", "a face should be numbers of vertices"),
        (read_obj, b"v 0 0 0\nv 1 0 0\nf 1 2 -9\n", "a face has vertex -7"),
        (read_obj, b"hello\n", "has no points"),
        (read_ply, b"ply\nformat ascii 1.0\n", "no header from ply to end_header"),
        (read_ply, ply("little")[:-5], "ends within its faces"),
        (read_ply, ply("ascii").replace(b"property float z\n", b""), "should have the properties x, y and z"),
        (read_ply, ply("ascii").replace(b"vertex 8", b"vertex 80"), "vertices|ends before|numbers"),
    ],
)
def test_what_is_wrong_with_a_mesh_is_said(read, content, words):
    with pytest.raises(CorruptFile, match=words):
        read(content, "the file")


def test_a_mesh_without_area_is_refused():
    flat = Mesh(np.zeros((3, 3), np.float32), np.array([[0, 1, 2]]))
    with pytest.raises(CorruptFile, match="all faces together have no area"):
        surface.sample(flat, 10, np.random.default_rng(0), "flat.off")


def test_shapes_packed_with_xz_are_read_and_bombs_are_not(tmp_path, monkeypatch):
    path = tmp_path / "cube.off.xz"
    path.write_bytes(lzma.compress(OFF))
    assert len(read_shape(path).triangles) == 12
    monkeypatch.setattr("longspan.datasets.clouds.files.LARGEST", 1_000)
    path.write_bytes(lzma.compress(b"0" * 100_000))
    with pytest.raises(CorruptFile, match="more than 1,000 bytes"):
        read_shape(path)


def test_an_npz_file_with_objects_or_without_points_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.array([object()], dtype=object))
    with pytest.raises(CorruptFile, match="is not a readable"):
        read_shape(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", other=np.zeros(3))
    with pytest.raises(CorruptFile, match="should hold the arrays points"):
        read_shape(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(CorruptFile, match="is not a readable"):
        read_npz(tmp_path / "c.npz", "points")
    assert ".npz" in ENDINGS


# ------------------------------------------------------------------------------------------------- surfaces and camera


def test_points_of_a_mesh_are_uniform_by_area():
    stretched = Mesh(CUBE.vertices * np.array([1, 1, 3], np.float32), CUBE.triangles)
    points = surface.sample(stretched, 14_000, np.random.default_rng(0), "cube")
    on_lids = np.isclose(points[:, 2], 0) | np.isclose(points[:, 2], 3)
    assert on_lids.mean() == pytest.approx(2 / 14, abs=0.01)  # three standard errors
    assert ((points > -1e-6) & (points < np.array([1, 1, 3]) + 1e-6)).all()


@given(st.floats(0, 360), st.floats(-80, 80))
def test_the_camera_looks_at_the_origin_upright(azimuth, elevation):
    rotation, position = camera.pose(azimuth, elevation)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(rotation @ -position, [0, 0, 1.5], atol=1e-12)
    assert np.linalg.det(rotation) == pytest.approx(1)
    assert rotation[0, 1] == 0
    assert rotation[1, 1] < 0  # down stays down


def test_the_camera_sees_the_sides_of_a_box_that_face_it_and_no_other():
    box = Mesh((CUBE.vertices - 0.5) / 3**0.5, CUBE.triangles)
    dense = surface.sample(box, 200_000, np.random.default_rng(0), "box")
    half = 0.5 / 3**0.5
    front = camera.seen(dense, camera.pose(0, 0))
    assert 1_000 < len(front) < 4_000
    assert (front[:, 2] > half - 0.02).all()
    above = camera.seen(dense, camera.pose(30, 30))
    assert {tuple(side) for side in np.isclose(above, half, atol=1e-6).astype(int).tolist() if sum(side) == 1} == {
        *((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    }


def test_gaps_between_the_points_of_a_cloud_show_nothing_of_what_lies_behind():
    box = Mesh((CUBE.vertices - 0.5) / 3**0.5, CUBE.triangles)
    rng = np.random.default_rng(0)
    sparse = surface.sample(box, 4_096, rng, "box")
    assert (camera.seen(sparse, camera.pose(0, 0))[:, 2] < -0.2).mean() > 0.02  # one can see through a bare cloud
    front = camera.seen(surface.between(sparse, 64, rng), camera.pose(0, 0))
    assert (front[:, 2] < -0.2).mean() < 0.002


def test_points_put_between_others_stay_among_them():
    points = np.random.default_rng(0).uniform(-0.5, 0.5, (300, 2))
    flat = np.concatenate([points, np.zeros((300, 1))], axis=1)
    dense = surface.between(flat, 5, np.random.default_rng(1))
    assert dense.shape == (1_800, 3)
    assert (dense[:, 2] == 0).all()
    assert (abs(dense) <= 0.5).all()
    np.testing.assert_array_equal(dense[:300], flat)


@given(st.integers(3, 60), st.integers(1, 12))
def test_neighbours_are_the_nearest_ones(count, wanted):
    points = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
    wanted = min(wanted, count - 1)
    distance = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(distance, np.inf)
    near = surface.neighbours(points, wanted)
    np.testing.assert_allclose(
        np.sort(np.take_along_axis(distance, near, 1)), np.sort(distance)[:, :wanted], rtol=1e-3, atol=1e-3
    )


def test_our_views_agree_with_the_reference_views(reference):
    """The same camera and 8,192 surface points instead of three million give as many points, in the same positions."""
    views = read_npz(
        reference("pointcloud_furniture/partial_10.npz"), "points", "offsets", "ids", "rotation", "position"
    )
    number = views["ids"].tolist().index("blendswap-cc-by_cafe_set_tonon_table")
    theirs = views["points"][views["offsets"][number] : views["offsets"][number + 1]]
    tables = read_npz(reference("pointcloud_furniture/table.npz"), "points", "ids")
    whole = tables["points"][tables["ids"].tolist().index(views["ids"][number])].astype(np.float64)
    pose = camera.Pose(views["rotation"][number], views["position"][number])
    azimuth, elevation = np.degrees([np.arctan2(pose.position[0], pose.position[2]), np.arcsin(pose.position[1] / 1.5)])
    np.testing.assert_allclose(camera.pose(azimuth, elevation).rotation, pose.rotation, atol=1e-9)
    ours = camera.seen(surface.between(whole, 64, np.random.default_rng(0)), pose)
    assert len(ours) == pytest.approx(len(theirs), rel=0.06)
    distance = np.linalg.norm(ours[:, None] - theirs[None], axis=2)
    assert distance.min(axis=0).mean() < 0.008  # a pixel is 0.0125 wide
    assert distance.min(axis=1).mean() < 0.008
