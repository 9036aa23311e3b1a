from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from helpers import trained_models
from logpolar.errors import ImageError, KeypointError
from logpolar.features.extractor import Extractor
from logpolar.images import to_gray
from logpolar.integrations.kornia import LogPolarDescriptor
from logpolar.keypoints.detection import SiftDetector
from logpolar.keypoints.keypoints import Keypoints, frame_circle
from logpolar.models import Model, load_model
from logpolar.models.cards import ModelCard, NetworkOptions
from logpolar.models.network import DescriptorNetwork
from logpolar.sampling import Cartesian, LogPolar, sample_patches

kornia = pytest.importorskip("kornia")
feature = kornia.feature


@pytest.fixture(scope="module")
def descriptor():
    return LogPolarDescriptor()


@pytest.fixture(scope="module")
def image(gray):
    return torch.from_numpy(gray)[None, None]


def random_keypoints(count, low=0.0, high=511.0, largest=60.0, seed=0):
    random = np.random.default_rng(seed)
    sizes = np.exp(random.uniform(0, np.log(largest), count))
    return Keypoints.from_points(random.uniform(low, high, (count, 2)), sizes, random.uniform(0, 360, count))


def small_model(sampling):
    """Random weights."""
    torch.manual_seed(0)
    options = NetworkOptions(sampling.rows, sampling.columns, circular=isinstance(sampling, LogPolar))
    state = DescriptorNetwork(options).state_dict()
    weights = {name: values.numpy() for name, values in state.items() if not name.endswith("num_batches_tracked")}
    return Model(ModelCard("small", "", sampling, options), weights, b"", "")


class TestFrames:
    """kornia's own functions are the truth."""

    def test_scale_and_orientation_of_turned_frames(self):
        random = np.random.default_rng(1)
        scale = torch.from_numpy(random.uniform(1, 50, (1, 40, 1, 1)))
        orientation = torch.from_numpy(random.uniform(-179, 179, (1, 40, 1)))
        lafs = feature.laf_from_center_scale_ori(torch.zeros(1, 40, 2, dtype=torch.float64), scale, orientation)
        found, angle = frame_circle(lafs, torch)
        torch.testing.assert_close(found, feature.get_laf_scale(lafs)[..., 0, 0])
        torch.testing.assert_close(angle, -feature.get_laf_orientation(lafs)[..., 0])

    def test_affine_frames_are_circles_of_their_area_along_their_first_axis(self, descriptor, image):
        random = np.random.default_rng(2)
        shapes = random.normal(0, 20, (1, 12, 2, 2))
        lafs = torch.from_numpy(np.concatenate([shapes, random.uniform(100, 400, (1, 12, 2, 1))], axis=3)).float()
        along = torch.rad2deg(torch.atan2(lafs[..., 1, 0], lafs[..., 0, 0]))[..., None]
        area = lafs[..., :2].det().abs().sqrt()[..., None, None]
        circles = feature.laf_from_center_scale_ori(feature.get_laf_center(lafs), area, -along)
        with torch.no_grad():
            torch.testing.assert_close(descriptor(image, lafs), descriptor(image, circles), atol=1e-4, rtol=0)

    def test_pixel_centres(self, image):
        """kornia's patch and our Cartesian one see the same pixels: size = scale * 1/6, lambda = 12."""
        lafs = feature.laf_from_center_scale_ori(
            torch.tensor([[[100.25, 80.5], [300.0, 200.75]]]),
            torch.tensor([10.0, 14.0]).reshape(1, 2, 1, 1),
            torch.tensor([30.0, -100.0]).reshape(1, 2, 1),
        )
        theirs = feature.extract_patches_simple(image, lafs, 32)[0, :, 0]
        keypoints = Keypoints.from_lafs(lafs[0].numpy())
        ours = sample_patches(image[0, 0].numpy(), keypoints, Cartesian(12, antialias=False))
        np.testing.assert_allclose(ours, theirs.numpy(), atol=2e-3)

    def test_a_third_of_a_blob_s_scale_is_sift_s_size(self):
        rows, columns = np.mgrid[:121, :121] - 60
        blob = np.exp(-(rows**2 + columns**2) / (2 * 6**2)).astype(np.float32)
        pyramid = kornia.geometry.ScalePyramid(3, 1.6, 32, double_image=True)
        detector = feature.ScaleSpaceDetector(
            1,
            resp_module=feature.BlobDoG(),
            scale_pyr_module=pyramid,
            scale_space_response=True,
            minima_are_also_good=True,
        )
        lafs, _ = detector(torch.from_numpy(blob)[None, None])
        found, expected = Keypoints.from_lafs(lafs[0].numpy(), 1 / 3), SiftDetector(1)(blob)
        np.testing.assert_allclose(found.xy, expected.xy, atol=0.3)
        np.testing.assert_allclose(found.size, expected.size, rtol=0.1)


class TestDescriptors:
    @pytest.mark.parametrize("name", trained_models())
    def test_are_the_library_s(self, name, gray, image):
        keypoints = random_keypoints(60, -100, 600, 200)
        expected = Extractor(name, max_size=None).extract(gray, keypoints).descriptors
        with torch.no_grad():
            found = LogPolarDescriptor(name)(image, torch.from_numpy(keypoints.to_lafs())[None])
        assert found.shape == (1, 60, 128)
        np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-4)

    def test_of_a_batch_are_those_of_its_images(self, descriptor, image):
        images = torch.cat([image, image.flip(3), image.transpose(2, 3)])
        lafs = torch.stack([torch.from_numpy(random_keypoints(7, seed=seed).to_lafs()) for seed in range(3)])
        with torch.no_grad():
            together = descriptor(images, lafs)
            alone = torch.cat([descriptor(images[i : i + 1], lafs[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)

    def test_more_frames_than_a_chunk(self, image):
        small = LogPolarDescriptor(small_model(LogPolar(24, 4, 4)))
        lafs = torch.from_numpy(random_keypoints(1025).to_lafs())[None]
        with torch.no_grad():
            found = small(image, lafs)
            torch.testing.assert_close(found[:, 1000:], small(image, lafs[:, 1000:]), atol=1e-5, rtol=0)

    def test_colour(self, descriptor, photo):
        lafs = torch.from_numpy(random_keypoints(10).to_lafs())[None]
        colour = torch.from_numpy(np.ascontiguousarray(photo[:, :, ::-1]) / np.float32(255)).permute(2, 0, 1)[None]
        with torch.no_grad():
            found = descriptor(colour, lafs)
            expected = descriptor(torch.from_numpy(to_gray(photo))[None, None], lafs)
        assert (found * expected).sum(2).min() > 0.999  # OpenCV rounds to 8 bits

    def test_sizes_per_scale(self, image, gray):
        keypoints = random_keypoints(10)
        model = load_model("logpolar-96")
        lafs = torch.from_numpy(keypoints.to_lafs(1 / 3))[None]
        with torch.no_grad():
            found = LogPolarDescriptor(model, 1 / 3)(image, lafs)[0].numpy()
        expected = Extractor(model, max_size=None).extract(gray, keypoints).descriptors
        np.testing.assert_allclose(found, expected, atol=1e-4)
        with pytest.raises(ValueError, match="sizes_per_scale"):
            LogPolarDescriptor(model, 0)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    def test_on_a_gpu(self, descriptor, image):
        lafs = torch.from_numpy(random_keypoints(50).to_lafs())[None]
        with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            expected = descriptor(image, lafs)
            found = LogPolarDescriptor().cuda()(image.cuda(), lafs.cuda())
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=0)


class TestGradients:
    @pytest.mark.parametrize(
        "sampling",
        [
            LogPolar(6, 4, 4, inner_radius=0.5),
            LogPolar(6, 4, 4, outside="mean", inner_radius="paper", antialias=False),
            Cartesian(5, 4, 4),
        ],
        ids=["reflect", "mean", "cartesian"],
    )
    def test_gradcheck_of_image_and_frames(self, sampling):
        module = LogPolarDescriptor(small_model(sampling)).double()
        image = torch.from_numpy(np.random.default_rng(0).random((1, 1, 9, 11))).requires_grad_()
        keypoints = Keypoints.from_points([[4.3, 3.9], [7.1, 5.2]], [2.3, 3.1], [17.0, 211.0])
        lafs = torch.from_numpy(keypoints.to_lafs()[None]).double().requires_grad_()
        # The fast mode compares derivatives along random directions rather than along each axis.
        assert torch.autograd.gradcheck(module, (image, lafs), eps=1e-7, atol=1e-5, fast_mode=True)

    def test_descriptors_are_the_same_with_gradients(self, descriptor, image):
        """Then, as on a GPU, torch makes the pyramid, not OpenCV."""
        lafs = torch.from_numpy(random_keypoints(10).to_lafs())[None]
        with torch.no_grad():
            expected = descriptor(image, lafs)
        torch.testing.assert_close(descriptor(image.clone().requires_grad_(), lafs), expected, atol=1e-5, rtol=0)

    def test_weights_and_chunks(self):
        module = LogPolarDescriptor(small_model(LogPolar(12, 4, 4)))
        lafs = torch.from_numpy(random_keypoints(1030, 0, 60).to_lafs())[None].requires_grad_()
        noise = torch.from_numpy(np.random.default_rng(0).random((1, 1, 64, 64), np.float32))
        module(noise, lafs)[..., 0].sum().backward()
        assert (lafs.grad.abs().sum(dim=(2, 3)) > 0).all()
        assert all(weight.grad.abs().sum() > 0 for weight in module.parameters())

    def test_a_frame_of_zeros_does_not_spoil_the_others(self, image):
        module = LogPolarDescriptor(small_model(LogPolar(12, 4, 4)))
        lafs = torch.from_numpy(random_keypoints(3).to_lafs())[None]
        lafs[0, 1] = 0
        lafs.requires_grad_()
        module(image, lafs)[..., 0].sum().backward()
        assert lafs.grad.isfinite().all()
        assert (lafs.grad[0, 1] == 0).all()


class TestOddInput:
    @pytest.mark.parametrize(("images", "frames"), [(0, 0), (0, 3), (2, 0)])
    def test_nothing_in_nothing_out(self, descriptor, images, frames):
        assert descriptor(torch.rand(images, 1, 20, 20), torch.rand(images, frames, 2, 3)).shape == (
            images,
            frames,
            128,
        )

    @pytest.mark.parametrize("spoil", [0.0, float("nan"), float("inf"), 1e12])
    def test_frames_that_are_none_have_the_descriptor_zero(self, descriptor, image, spoil):
        lafs = torch.from_numpy(random_keypoints(4).to_lafs())[None]
        with torch.no_grad():
            expected = descriptor(image, lafs)
            expected[:, 2] = 0
            lafs[:, 2] = spoil
            torch.testing.assert_close(descriptor(image, lafs), expected, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (2, 3)])
    def test_tiny_images(self, descriptor, shape):
        lafs = torch.from_numpy(random_keypoints(5, 0, 2).to_lafs())[None]
        pixels = torch.rand(1, 1, *shape)
        with torch.no_grad():
            found = descriptor(pixels, lafs)[0].numpy()
        expected = Extractor(max_size=None).extract(pixels[0, 0].numpy(), Keypoints.from_lafs(lafs[0].numpy()))
        np.testing.assert_allclose(found, expected.descriptors, atol=1e-4)

    def test_half_precision_images(self, descriptor, image):
        lafs = torch.from_numpy(random_keypoints(4).to_lafs())[None]
        with torch.no_grad():
            cosine = (descriptor(image.half(), lafs) * descriptor(image, lafs)).sum(2)
        assert cosine.min() > 0.9999

    @pytest.mark.parametrize("shape", [(20, 20), (1, 2, 20, 20), (1, 1, 0, 20)])
    def test_what_is_no_batch_of_images(self, descriptor, shape):
        with pytest.raises(ImageError, match="images must be"):
            descriptor(torch.rand(*shape), torch.rand(1, 2, 2, 3))
        with pytest.raises(ImageError, match="uint8"):
            descriptor(torch.zeros(1, 1, 9, 9, dtype=torch.uint8), torch.rand(1, 2, 2, 3))

    @pytest.mark.parametrize("shape", [(2, 2, 3), (1, 2, 3, 3), (2, 2, 2, 3)])
    def test_what_are_no_frames(self, descriptor, shape):
        with pytest.raises(KeypointError, match="need LAFs of shape"):
            descriptor(torch.rand(1, 1, 20, 20), torch.rand(*shape))


def test_inside_local_feature(descriptor, image):
    image = image[:, :, :160, 140:300]
    detector = feature.MultiResolutionDetector(
        feature.CornerGFTT(), num_features=60, ori_module=feature.LAFOrienter(19)
    )
    with torch.no_grad():
        lafs, _, first = feature.LocalFeature(detector, descriptor)(image)
        turned_lafs, _, second = feature.LocalFeature(detector, descriptor)(image.rot90(1, (2, 3)))
    assert first.shape == (1, 60, 128)
    _, matches = feature.match_mnn(first[0], second[0])
    xy, turned = lafs[0, matches[:, 0], :, 2], turned_lafs[0, matches[:, 1], :, 2]
    expected = torch.stack([xy[:, 1], image.shape[3] - 1 - xy[:, 0]], dim=1)
    assert ((expected - turned).norm(dim=1) < 2).sum() > 36


def test_without_torch_the_extra_is_named():
    script = """
import sys
sys.modules["torch"] = None
import logpolar.integrations
try:
    import logpolar.integrations.kornia
except logpolar.LogpolarError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "logpolar[kornia]" in done.stdout
