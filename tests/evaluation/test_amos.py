from __future__ import annotations

import math
import pickle

import cv2
import numpy as np
import pytest
import torch

from function_describer import uncached
from logpolar.errors import ImageError, LogpolarError
from logpolar.evaluation.amos import SKIPPED, amos_pairs, score_amos
from logpolar.evaluation.options import AmosOptions
from logpolar.features.sift import root_sift

VIEWS = ("00000100", "00004431", "00020000", "00030000")  # the second is one that the paper leaves out
SKIPPED_VIEW, LARGE_VIEW = 1, 3
IMAGES = 5
PER_VIEW = 12


def make_lafs(count: int) -> torch.Tensor:
    random = np.random.default_rng(0)
    scale = random.uniform(6, 12, count)
    lafs = np.zeros((count, 2, 3), np.float32)
    lafs[:, 0, 0], lafs[:, 1, 1] = 1.5 * scale, scale / 1.5  # elongated; only the area counts
    lafs[:, :, 2] = random.uniform(20, 140, (count, 2))
    return torch.from_numpy(lafs)


def write_patches(folder, lafs=None, numbers=None, **options):
    count = PER_VIEW * len(VIEWS)
    lafs = make_lafs(count) if lafs is None else lafs
    numbers = torch.arange(count).remainder(len(VIEWS))[:, None] if numbers is None else numbers
    torch.save([torch.zeros(count, 4, 4, dtype=torch.uint8), lafs, numbers], folder / "train_patches.pt", **options)


def write_lists(folder, lists=None):
    """Not in the order of the names, as a listing of a folder need not be."""
    if lists is None:
        lists = {view: [f"{number}.png" for number in (3, 0, 4, 1, 2)] for view in VIEWS}
    np.save(folder / "images_in_views.npy", np.array(lists), allow_pickle=True)


@pytest.fixture
def folder(gray, tmp_path):
    """Views of static cameras: parts of the photo in changing light. The last view has one large image."""
    for number, view in enumerate(VIEWS):
        (tmp_path / "Train" / view).mkdir(parents=True)
        part = gray[100 * number : 100 * number + 160, 200:360]
        for image in range(IMAGES):
            pixels = np.rint(255 * part ** (0.6 + 0.3 * image)).astype(np.uint8)
            if number == LARGE_VIEW and image == 2:
                pixels = cv2.copyMakeBorder(pixels, 0, 0, 0, 1501 - 160, cv2.BORDER_REFLECT)
            cv2.imwrite(str(tmp_path / "Train" / view / f"{image}.png"), pixels)
    write_patches(tmp_path)
    write_lists(tmp_path)
    return tmp_path


def at_places(view, keypoints):
    """A descriptor that knows the places."""
    vectors = np.stack([np.random.default_rng(int(1000 * x)).normal(size=32) for x in keypoints.xy[:, 0]])
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class TestDraws:
    def drawn(self, pairs):
        result = [None] * len(pairs)
        for group in pairs:
            for row in group.rows.tolist():
                result[row] = (group.view, group.first.name, group.second.name)
        return result

    def expected(self, skip):
        """As the published evaluation draws: from the global generator, by name, skipped views without a draw."""
        np.random.seed(42)  # noqa: NPY002
        names, result = [f"{number}.png" for number in (3, 0, 4, 1, 2)], []
        for row in range(PER_VIEW * len(VIEWS)):
            if row % len(VIEWS) != skip:
                result.append((VIEWS[row % len(VIEWS)], *np.random.choice(names, 2, replace=False).tolist()))  # noqa: NPY002
        return result

    def test_paper(self, folder):
        """A view that is too large is left out, but has had its draws."""
        pairs = amos_pairs(folder)
        assert len(SKIPPED) == 5
        assert self.drawn(pairs) == [each for each in self.expected(SKIPPED_VIEW) if each[0] != VIEWS[LARGE_VIEW]]
        assert set(pairs.left_out) == {VIEWS[SKIPPED_VIEW], VIEWS[LARGE_VIEW]}
        assert pairs.left_out[VIEWS[LARGE_VIEW]] == "2.png is 1501 x 160, larger than 1500 px"

    def test_full(self, folder):
        pairs = amos_pairs(folder, AmosOptions("full"))
        assert self.drawn(pairs) == self.expected(None)
        assert len(pairs) == PER_VIEW * len(VIEWS)
        assert not pairs.left_out

    def test_groups(self, folder):
        """Each pair of images once, both of one view and different."""
        groups = list(amos_pairs(folder, AmosOptions("full")))
        assert len({(group.first, group.second) for group in groups}) == len(groups)
        assert all(group.first != group.second for group in groups)
        assert all(group.first.parent.name == group.second.parent.name == group.view for group in groups)
        assert max(len(group.rows) for group in groups) > 1

    def test_keypoints(self, folder):
        lafs = make_lafs(PER_VIEW * len(VIEWS)).numpy()
        for group in amos_pairs(folder, AmosOptions("full")):
            np.testing.assert_array_equal(group.keypoints.xy, lafs[group.rows, :, 2])
            np.testing.assert_allclose(group.keypoints.size**2, np.linalg.det(lafs[group.rows, :, :2]), rtol=1e-5)
            assert (group.keypoints.angle == 0).all()

    def test_seed(self, folder):
        one, other = (self.drawn(amos_pairs(folder, AmosOptions("full", seed))) for seed in (42, 43))
        assert one != other

    def test_without_lists(self, folder):
        (folder / "images_in_views.npy").unlink()
        (folder / "Train" / VIEWS[0] / "readme.txt").write_text("no image")
        pairs = amos_pairs(folder)
        assert "images_in_views.npy is missing" in pairs.lists
        assert "is missing" in score_amos(pairs, uncached(at_places)).to_dict()["lists"]
        assert amos_pairs(folder).groups[0].rows.tolist() == pairs.groups[0].rows.tolist()

    @pytest.mark.parametrize("flat", [False, True])
    def test_files_of_old_versions(self, folder, flat):
        """Written by torch before 1.6 and by numpy before 2; numbers of views with or without a second axis."""
        before = self.drawn(amos_pairs(folder))
        numbers = torch.arange(PER_VIEW * len(VIEWS)).remainder(len(VIEWS)).float()
        write_patches(folder, numbers=numbers if flat else numbers[:, None], _use_new_zipfile_serialization=False)
        path = folder / "images_in_views.npy"
        header = path.read_bytes().partition(b"\n")[0] + b"\n"
        old = pickle.dumps(np.load(path, allow_pickle=True), 2).replace(b"numpy._core.", b"numpy.core.")
        path.write_bytes(header + old)
        assert self.drawn(amos_pairs(folder)) == before


class TestScores:
    def test_truth(self, folder):
        calls = []

        def describe(view, keypoints):
            calls.append(view.tobytes())
            assert view.dtype == np.uint8
            return at_places(view, keypoints)

        score = score_amos(amos_pairs(folder, AmosOptions("full")), uncached(describe))
        assert score.rank1 == 1
        assert (score.pairs, score.views, score.images) == (PER_VIEW * len(VIEWS), len(VIEWS), len(VIEWS) * IMAGES)
        assert len(calls) == len(set(calls)) == score.images

    def test_chance(self, folder):
        random = np.random.default_rng(0)
        views = uncached(lambda view, keypoints: random.normal(size=(len(keypoints), 16)))
        score = score_amos(amos_pairs(folder, AmosOptions("full")), views)
        assert score.rank1 < 0.15
        assert score.cumulative[100] == 1
        assert 0.25 < score.cumulative[20] < 0.6

    def test_real_descriptor(self, folder):
        """The light changes, nothing else; the same place is found nearly always."""
        assert score_amos(amos_pairs(folder, AmosOptions("full")), uncached(root_sift)).rank1 > 0.8

    def test_same_file_names_in_several_views(self, folder):
        """Views are told apart by folder: all have a 0.png."""
        pairs = amos_pairs(folder)
        shades = {}
        for group in pairs:
            for path in (group.first, group.second):
                pixels = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
                shades[pixels.tobytes()] = group.view

        def by_view(view, keypoints):
            side = 1.0 if shades[view.tobytes()] == VIEWS[0] else -1.0
            return np.concatenate([np.full((len(keypoints), 1), side), at_places(view, keypoints)], axis=1)

        assert score_amos(pairs, uncached(by_view)).rank1 == 1

    def test_as_dictionary(self, folder):
        values = score_amos(amos_pairs(folder), uncached(at_places)).to_dict()
        assert values["options"] == {"mode": "paper", "seed": 42}
        assert values["pairs"] == 2 * PER_VIEW
        assert values["views"] == 2
        assert values["rank1"] == values["cumulative"]["1"] == 1
        assert values["lists"] == "images_in_views.npy"

    def test_impossible_options(self):
        with pytest.raises(ValueError, match="mode must be paper or full"):
            AmosOptions("half")


class TestBrokenFolders:
    def assert_refused(self, folder, match, options=None):
        with pytest.raises(LogpolarError, match=match) as caught:
            amos_pairs(folder, options)
        assert "\n" not in str(caught.value)

    def test_no_images(self, folder):
        (folder / "Train").rename(folder / "Elsewhere")
        self.assert_refused(folder, "Train: no such file")

    def test_no_views(self, folder):
        (folder / "Train").rename(folder / "Elsewhere")
        (folder / "Train").mkdir()
        self.assert_refused(folder, "no views")

    def test_no_patches(self, folder):
        (folder / "train_patches.pt").unlink()
        self.assert_refused(folder, r"train_patches\.pt: no such file")

    @pytest.mark.parametrize("share", [0, 0.3, 0.9])
    def test_part_of_the_patches(self, folder, share):
        data = (folder / "train_patches.pt").read_bytes()
        (folder / "train_patches.pt").write_bytes(data[: int(share * len(data))])
        self.assert_refused(folder, r"train_patches\.pt: not a file of tensors")

    @pytest.mark.parametrize("number", [len(VIEWS), -1])
    def test_number_of_a_view_out_of_range(self, folder, number):
        write_patches(folder, numbers=torch.full((PER_VIEW * len(VIEWS), 1), number))
        self.assert_refused(folder, f"view number {number}, but Train has 4 views")

    def test_fewer_numbers_than_lafs(self, folder):
        write_patches(folder, numbers=torch.zeros(3, 1))
        self.assert_refused(folder, r"48 LAFs, but numbers of views of shape \(3, 1\)")

    @pytest.mark.parametrize("shape", [(48, 6), (48, 3, 2)])
    def test_lafs_of_wrong_shape(self, folder, shape):
        write_patches(folder, lafs=torch.zeros(shape))
        self.assert_refused(folder, r"LAFs have the shape \(N, 2, 3\)")

    @pytest.mark.parametrize("value", [math.nan, -5.0, 0.0])
    def test_lafs_without_scale(self, folder, value):
        lafs = make_lafs(PER_VIEW * len(VIEWS))
        lafs[7, 0, 0] = value
        write_patches(folder, lafs=lafs)
        self.assert_refused(folder, "1 of 48 LAFs have no positive, finite scale")

    @pytest.mark.parametrize("stored", [{"patches": 1}, [torch.zeros(1)], [1, 2, 3]], ids=str)
    def test_other_content(self, folder, stored):
        torch.save(stored, folder / "train_patches.pt")
        self.assert_refused(folder, "not a list of|not tensors")

    @pytest.mark.parametrize(
        "odd",
        [
            torch.zeros(48, 2, 3).to_sparse(),
            torch.zeros(48, 2, 3, dtype=torch.bfloat16),
            torch.zeros(48, 2, 3, device="meta"),
            torch.zeros(1, 2, 3).expand(10**10, 2, 3),
        ],
        ids=["sparse", "bfloat16", "meta", "repeated"],
    )
    def test_tensors_of_other_kinds(self, folder, odd):
        torch.save([torch.zeros(1), odd, torch.zeros(48)], folder / "train_patches.pt")
        self.assert_refused(folder, "not tensors of plain numbers|not a file of tensors")

    @pytest.mark.parametrize("listed", [True, False])
    def test_view_with_one_image(self, folder, listed):
        for number in range(1, IMAGES):
            (folder / "Train" / VIEWS[2] / f"{number}.png").unlink()
        write_lists(folder, {view: ["0.png"] if view == VIEWS[2] else ["0.png", "1.png"] for view in VIEWS})
        if not listed:
            (folder / "images_in_views.npy").unlink()
        self.assert_refused(folder, r"00020000: 1 image\(s\) in this view")

    def test_image_that_is_not_there(self, folder):
        (folder / "Train" / VIEWS[2] / "4.png").unlink()
        self.assert_refused(folder, r"4\.png: no such image, though listed in images_in_views\.npy")

    def test_image_listed_twice(self, folder):
        write_lists(folder, {view: ["0.png", "1.png", "0.png"] for view in VIEWS})
        self.assert_refused(folder, "listed twice")

    def test_view_that_is_not_there(self, folder):
        """Sorted names would stand for other numbers: nothing could be told from the figures."""
        write_lists(folder, {view: ["0.png", "1.png"] for view in (*VIEWS, "00000001")})
        self.assert_refused(folder, "no view '00000001'")

    def test_view_that_is_not_listed(self, folder):
        write_lists(folder, {view: ["0.png", "1.png"] for view in VIEWS[:2]})
        self.assert_refused(folder, "no list of images of the view '00020000'")

    def test_names_outside_the_view(self, folder):
        write_lists(folder, {view: ["0.png", "../secret.png"] for view in VIEWS})
        self.assert_refused(folder, "not the name of a file")

    @pytest.mark.parametrize("lists", [["0.png"], {VIEWS[0]: 3}], ids=str)
    def test_other_lists(self, folder, lists):
        write_lists(folder, lists)
        self.assert_refused(folder, "not a dictionary|not a list|not one pickled value")

    def test_names_that_take_for_ever_as_text(self, folder):
        nested = ["0.png"] * 10
        for _ in range(9):
            nested = [nested] * 10
        write_lists(folder, {VIEWS[0]: nested})
        self.assert_refused(folder, "not a list of file names")

    def test_damaged_image(self, folder):
        (folder / "Train" / VIEWS[0] / "1.png").write_bytes(b"nothing")
        with pytest.raises(ImageError, match=r"1\.png: not an image"):
            amos_pairs(folder)

    def test_nothing_left(self, folder):
        write_patches(folder, numbers=torch.full((PER_VIEW * len(VIEWS), 1), SKIPPED_VIEW))
        self.assert_refused(folder, "views that are left out")


class TestListedPairs:
    """Image pairs of fixed cameras in place of the published patches."""

    @pytest.fixture
    def listed(self, folder):
        lines = [f"Train/{view}/0.png Train/{view}/4.png" for view in VIEWS[:3]]
        (folder / "pairs.txt").write_text("\n".join(lines))
        return folder / "pairs.txt"

    def test_upright_and_spaced(self, listed):
        pairs = amos_pairs(listed)
        assert 10 < len(pairs) <= 300
        assert [group.first.name for group in pairs] == ["0.png"] * 3
        assert np.concatenate([group.rows for group in pairs]).tolist() == list(range(len(pairs)))
        for group in pairs:
            assert (group.keypoints.angle == 0).all()
            distance = np.linalg.norm(group.keypoints.xy[:, None] - group.keypoints.xy[None], axis=2)
            assert (distance + 99 * np.eye(len(distance))).min() >= 7

    def test_results_are_marked_as_a_stand_in(self, listed):
        score = score_amos(amos_pairs(listed), uncached(root_sift))
        assert "stand-in" in score.lists
        assert score.views == 3
        assert score.rank1 > 0.5

    def test_homographies_are_refused(self, listed):
        np.savetxt(listed.parent / "H", np.eye(3))
        listed.write_text(listed.read_text() + " H\n")
        with pytest.raises(LogpolarError, match="leave out pairs with a homography"):
            amos_pairs(listed)

    def test_pairs_without_keypoints(self, tmp_path):
        cv2.imwrite(str(tmp_path / "flat.png"), np.full((60, 60), 128, np.uint8))
        (tmp_path / "pairs.txt").write_text("flat.png flat.png\n")
        with pytest.raises(LogpolarError, match="no keypoints in the first images of its 1 pairs"):
            amos_pairs(tmp_path / "pairs.txt")
