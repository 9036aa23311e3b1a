from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib import resources

import numpy as np
import pytest

from logpolar.errors import LogpolarError, MissingExtraError
from logpolar.evaluation.descriptors.registry import open_method
from logpolar.features.extractor import Extractor
from logpolar.features.sift import root_sift, sift
from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.models.detectors import NetworkDetector
from logpolar.sampling import Cartesian, sample_patches

torch = pytest.importorskip("torch")

KORNIA = {"tfeat": "TFeat", "hardnet": "HardNet", "sosnet": "SOSNet", "hynet": "HyNet"}


@pytest.fixture(scope="module")
def view(gray) -> np.ndarray:
    return to_bytes(gray)[100:350, 100:400].copy()


@pytest.fixture(scope="module")
def keypoints(view) -> Keypoints:
    """One chunk, and a part of a second."""
    return SiftDetector(90)(view / np.float32(255))


@pytest.fixture(scope="module")
def feature():
    return pytest.importorskip("kornia.feature")


def describe(method, view, keypoints):
    return method.describer.describe(to_gray(view), keypoints)


class Pixels(torch.nn.Module):
    """Every second pixel of the patch; ``gain`` makes files differ."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(float(gain)))

    def forward(self, patches):
        return patches.flatten(1)[:, ::2] * self.gain


class Fixed(torch.nn.Module):
    """Whatever a function makes of the patches."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, patches):
        return self.function(patches)


def save_script(path, network, shape=(2, 1, 32, 32)) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(network, torch.rand(shape), check_trace=False).save(str(path))
    return f"torchscript:{path}"


def save_onnx(path, network, shape=(2, 1, 32, 32), fixed: bool = False) -> str:
    axes = None if fixed else {"patches": {0: "count"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old exporter is deprecated, and 20 times faster
        values = (torch.rand(shape),)
        torch.onnx.export(network.eval(), values, path, input_names=["patches"], dynamic_axes=axes, dynamo=False)
    return f"onnx:{path}"


def patches_of(view, keypoints, lambda_: float = 12.0, size: int = 32, antialias: bool = True) -> np.ndarray:
    return sample_patches(view / np.float32(255), keypoints, Cartesian(lambda_, size, size, antialias))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def pixels_of(patches: np.ndarray) -> np.ndarray:
    return unit(patches.reshape(len(patches), -1)[:, ::2])


def random_network(kind):
    """Statistics of batch normalisation included, which are all alike in a new module."""
    torch.manual_seed(7)
    module = kind(pretrained=False).train()
    module(torch.rand(16, 1, 32, 32))
    return module.eval()


def assert_refused(spec: str, *words: str, kind: type[Exception] = LogpolarError) -> str:
    with pytest.raises(kind) as caught:
        open_method(spec)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400 + 3 * len(spec)
    assert all(word in message for word in (spec, *words)), message
    return message


class TestModels:
    def test_shipped_model_describes_as_the_extractor_does(self, view, keypoints):
        method = open_method("logpolar-96")
        expected = Extractor("logpolar-96", max_size=None).extract(view, keypoints[:5]).descriptors
        np.testing.assert_allclose(describe(method, view, keypoints[:5]), expected, atol=1e-6)
        assert describe(method, view, Keypoints.empty()).shape == (0, 128)
        assert method.name == "logpolar-96"

    def test_model_file_is_named_after_the_file_and_is_the_same_model(self, tmp_path):
        file = tmp_path / "mine.safetensors"
        file.write_bytes((resources.files("logpolar.models") / "weights" / "logpolar-96.safetensors").read_bytes())
        method = open_method(str(file))
        assert method.name == "mine"
        assert method.identity == open_method("logpolar-96").identity
        assert method.identity["sampling"]["lambda"] == 96

    def test_errors(self, tmp_path):
        assert_refused("logpolar-97", "known", "logpolar-96", "rootsift", "hardnet", "onnx")
        assert_refused("", "known")
        assert_refused(str(tmp_path / "none.safetensors"), "no model")
        (tmp_path / "text.safetensors").write_text("text")
        assert_refused(str(tmp_path / "text.safetensors"), "not a safetensors file")
        assert_refused("logpolar-96,lambda=3", "unknown option 'lambda'")


class TestSift:
    def test_sift_and_root_sift_are_two_normalisations_of_the_same_histograms(self, view, keypoints):
        plain, root = (describe(open_method(name), view, keypoints) for name in ("sift", "rootsift"))
        np.testing.assert_allclose(np.linalg.norm(plain, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(root**2, plain / plain.sum(axis=1, keepdims=True), atol=1e-6)
        np.testing.assert_array_equal(root, root_sift(view, keypoints))
        assert describe(open_method("sift"), view, Keypoints.empty()).shape == (0, 128)

    def test_twice_the_lambda_is_twice_the_size(self, view, keypoints):
        doubled = Keypoints.from_points(keypoints.xy, 2 * keypoints.size, keypoints.angle)
        wide = open_method("sift,lambda=24")
        np.testing.assert_array_equal(wide.describer.describe(to_gray(view), keypoints), sift(view, doubled))
        assert wide.name == "SIFT (lambda=24)"
        assert wide.identity != open_method("sift").identity
        assert open_method("sift,lambda=12").identity == open_method("sift").identity

    @pytest.mark.parametrize(("sizes", "seen"), [(3.5, True), (6, False)])
    def test_support_is_as_wide_as_the_docstring_says(self, view, sizes, seen):
        """The edge lies 3.75 sizes from the keypoint, 12 / 1.6 / 2, and the smoothing adds less than 2 sizes."""
        keypoint = Keypoints.from_points([[120, 120]], 12)
        changed = view.copy()
        column = 120 + round(12 * sizes)
        changed[110:130, column - 2 : column + 3] = 255
        assert (sift(view, keypoint) != sift(changed, keypoint)).any() == seen

    def test_errors(self):
        assert_refused("sift:file", "takes no file")
        assert_refused("sift,size=3", "unknown option 'size' (known: lambda)")
        assert_refused("sift,lambda=3,lambda=4", "twice")
        for value in ("0", "-1", "nan", "inf", "x", ""):
            assert_refused(f"sift,lambda={value}", "a positive number", f"'{value}'")


@pytest.fixture
def quick_networks(monkeypatch):
    """kornia's orthogonal initialisation takes seconds, and any weights do."""
    monkeypatch.setattr(torch.nn.init, "orthogonal_", lambda weights, gain=1: torch.nn.init.normal_(weights, 0, 0.05))


@pytest.mark.usefixtures("quick_networks")
class TestKornia:
    @pytest.mark.parametrize("name", KORNIA)
    def test_same_as_the_module_itself(self, name, feature, view, keypoints, tmp_path):
        module = random_network(getattr(feature, KORNIA[name]))
        torch.save({"epoch": 3, "state_dict": module.state_dict()}, tmp_path / "weights.pth")
        method = open_method(f"{name}:{tmp_path / 'weights.pth'},lambda=9")
        with torch.inference_mode():
            expected = module(torch.from_numpy(patches_of(view, keypoints, 9))[:, None]).numpy()
        assert unit(expected).std(axis=0).max() > 0.001
        np.testing.assert_allclose(describe(method, view, keypoints), unit(expected), atol=2e-5)
        assert describe(method, view, Keypoints.empty()).shape == (0, 128)
        assert method.name == f"{KORNIA[name]} (lambda=9)"
        assert method.identity["kind"] == name

    @pytest.mark.parametrize("name", ["tfeat", "hardtfeat"])
    def test_hardtfeat_is_tfeat_with_other_names(self, name, feature, view, keypoints, tmp_path):
        state = random_network(feature.TFeat).state_dict()
        names = {"features.1": "features.0", "features.4": "features.3", "descr.0": "classifier.1"}
        renamed = {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": state[key] for key in state}
        renamed["classifier.1.weight"] = renamed["classifier.1.weight"].reshape(128, 64, 8, 8)
        renamed["SIFT.gx.0.weight"] = torch.zeros(1, 1, 1, 3)
        torch.save({"state_dict": renamed}, tmp_path / "hard.pth")
        torch.save(state, tmp_path / "plain.pth")
        hard = describe(open_method(f"{name}:{tmp_path / 'hard.pth'}"), view, keypoints)
        plain = describe(open_method(f"tfeat:{tmp_path / 'plain.pth'}"), view, keypoints)
        np.testing.assert_array_equal(hard, plain)

    @pytest.mark.parametrize(("width", "kernels"), [(238, "concat"), (175, "polar"), (63, "cart")])
    def test_mkd_is_whitened_by_the_file(self, width, kernels, feature, view, keypoints, tmp_path):
        generator = torch.Generator().manual_seed(1)
        pca = {
            "mean": torch.rand(width, generator=generator),
            "eigvecs": torch.linalg.qr(torch.rand(width, width, generator=generator))[0],
            "eigvals": torch.rand(width, generator=generator) + 0.1,
        }
        torch.save({"yosemite": {"pca": pca}}, tmp_path / "mkd.pth")
        found = open_method(f"mkd:{tmp_path / 'mkd.pth'},set=yosemite,size=24").describer.describe(
            to_gray(view), keypoints
        )
        patches = torch.from_numpy(patches_of(view, keypoints, 12, 24))[:, None]
        plain = feature.MKDDescriptor(24, kernels, whitening=None)(patches)
        white = (plain - pca["mean"]) @ pca["eigvecs"][:, :128] * pca["eigvals"][:128] ** -0.35
        np.testing.assert_allclose(found, unit(white.numpy()), atol=2e-5)

    def test_errors(self, feature, tmp_path):
        path = tmp_path / "weights.pth"
        assert_refused("hardnet", "needs a file", "hardnet:FILE")
        assert_refused(f"hardnet:{path}", str(path), "no such file")
        path.write_bytes(b"no weights")
        assert_refused(f"hardnet:{path}", str(path), "not plain weights")
        torch.save({"features.0.weight": torch.zeros(2, 2)}, path)
        assert_refused(f"hardnet:{path}", str(path), "not the weights of HardNet")
        torch.save([1, 2], path)
        assert_refused(f"tfeat:{path}", str(path), "not the weights of TFeat")
        torch.save({"liberty": {"pca": {"mean": torch.zeros(5)}}}, path)
        assert_refused(f"mkd:{path}", str(path), "not the whitening of MKD")
        assert_refused(f"mkd:{path},set=paris", "set must be one of liberty")
        assert_refused(f"hardnet:{path},size=64", "unknown option 'size' (known: lambda, antialias)")
        assert_refused(f"hardnet:{path},antialias=no", "antialias must be one of true, false, not 'no'")

    def test_missing_packages(self, tmp_path, monkeypatch):
        file = tmp_path / "weights.pth"
        file.write_bytes(b"")
        monkeypatch.setitem(sys.modules, "kornia", None)
        assert_refused(f"hardnet:{file}", "logpolar[baselines]", kind=MissingExtraError)
        monkeypatch.setitem(sys.modules, "torch", None)
        assert_refused(f"torchscript:{file}", "logpolar[torch]", kind=MissingExtraError)


class TestAnyNetwork:
    @pytest.mark.parametrize("save", [save_onnx, save_script])
    def test_descriptors_are_the_networks_unit_vectors_in_any_company(self, save, view, keypoints, tmp_path):
        method = open_method(save(tmp_path / "pixels.bin", Pixels(3)))
        found = describe(method, view, keypoints)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, pixels_of(patches_of(view, keypoints)), atol=1e-6)
        alone = np.concatenate([describe(method, view, keypoints[k : k + 7]) for k in range(0, 90, 7)])
        np.testing.assert_array_equal(alone, found)
        assert describe(method, view, Keypoints.empty()).shape == (0, 512)
        assert method.name == "pixels"

    def test_lambda_size_and_antialiasing_change_the_patch(self, view, keypoints, tmp_path):
        spec = save_script(tmp_path / "pixels.pt", Pixels())
        for options, arguments in [
            ("lambda=24,size=16", (24, 16, True)),
            ("lambda=48,antialias=false", (48, 32, False)),
        ]:
            found = describe(open_method(f"{spec},{options}"), view, keypoints)
            np.testing.assert_allclose(found, pixels_of(patches_of(view, keypoints, *arguments)), atol=1e-6)
        usual = describe(open_method(spec), view, keypoints)
        assert np.abs(usual - describe(open_method(f"{spec},lambda=24"), view, keypoints)).max() > 0.01

    def test_scale_and_normalisation(self, view, keypoints, tmp_path):
        def squash(patches):
            return torch.tanh(patches.flatten(1)[:, ::2])

        spec, patches = save_script(tmp_path / "squash.pt", Fixed(squash)), patches_of(view, keypoints)
        centred = patches - patches.mean(axis=(1, 2), keepdims=True)
        for options, values in [
            ("scale=255", 255 * patches),
            ("normalise=zscore", centred / centred.std(axis=(1, 2), keepdims=True)),
            ("normalise=unit,scale=255", patches / np.linalg.norm(patches, axis=(1, 2), keepdims=True)),
        ]:
            found = describe(open_method(f"{spec},{options}"), view, keypoints)
            np.testing.assert_allclose(found, pixels_of(np.tanh(values)), atol=1e-5)

    @pytest.mark.parametrize(
        ("channels", "shape"), [("none", (4, 32, 32)), ("3", (4, 3, 32, 32)), ("last", (4, 32, 32, 1))]
    )
    def test_layouts_and_networks_of_a_fixed_batch(self, channels, shape, view, keypoints, tmp_path):
        spec = save_onnx(tmp_path / "fixed.onnx", Pixels(), shape, fixed=True)
        found = describe(open_method(f"{spec},channels={channels}"), view, keypoints)
        patches = patches_of(view, keypoints)
        tripled = np.repeat(patches[:, None], 3, axis=1) if channels == "3" else patches
        np.testing.assert_allclose(found, pixels_of(tripled), atol=1e-6)
        assert_refused(spec, str(tmp_path / "fixed.onnx"), "cannot run the network")

    def test_weights_must_lie_inside_the_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 128))
        save_onnx(tmp_path / "net.onnx", network)
        onnx = pytest.importorskip("onnx")
        onnx.save(onnx.load("net.onnx"), "split.onnx", save_as_external_data=True, location="split.data")
        assert open_method("onnx:net.onnx").name == "net"
        assert_refused("onnx:split.onnx", "not an ONNX network with embedded weights")

    @pytest.mark.parametrize("kind", ["onnx", "torchscript"])
    def test_files_that_are_no_network(self, kind, tmp_path):
        file = tmp_path / "file"
        assert_refused(f"{kind}:{file}", "no such file")
        file.write_bytes(b"text, or whatever")
        assert_refused(
            f"{kind}:{file}", str(file), "not an ONNX network" if kind == "onnx" else "not a TorchScript network"
        )
        assert_refused(f"{kind}:{file},scale=2", "scale must be one of 1, 255, not '2'")
        assert_refused(f"{kind}:{file},size=0", "size must be an integer")
        assert_refused(f"{kind}:{file},normalise=max", "normalise must be one of none, zscore, unit")
        assert_refused(f"{kind}:{file},colour=1", "unknown option 'colour'")

    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (lambda patches: patches * 2, "not (count, values)"),
            (lambda patches: patches.flatten(1).sum(dim=1), "not (count, values)"),
            (lambda patches: patches.flatten(1).sum(dim=0, keepdim=True), "not (count, values)"),
            (lambda patches: patches.flatten(1) / 0 * 0, "not finite"),
            (lambda patches: patches.flatten(1) - patches.flatten(1).mean(dim=0), "depend on the rest of the batch"),
        ],
    )
    def test_outputs_that_are_no_descriptors(self, function, words, tmp_path):
        assert_refused(save_script(tmp_path / "odd.pt", Fixed(function)), str(tmp_path), words)


def test_identity_changes_with_the_file_and_with_options_and_is_json(tmp_path):
    first, second = save_script(tmp_path / "a.pt", Pixels(1)), save_script(tmp_path / "b.pt", Pixels(2))
    options = ["lambda=13", "size=16", "scale=255", "antialias=false"]
    identities = [open_method(spec).identity for spec in (first, second, *(f"{first},{o}" for o in options))]
    texts = [json.dumps(identity) for identity in identities]
    assert len(set(texts)) == 6
    assert [json.loads(text) for text in texts] == identities
    assert open_method(f"{first},lambda=12").identity == identities[0]
    assert str(tmp_path) not in texts[0]


def test_devices_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(LogpolarError, match="cpu or cuda"):
        open_method("sift", device="tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for spec in ("logpolar-96", save_script(tmp_path / "a.pt", Pixels())):
        with pytest.raises(LogpolarError, match="no CUDA device"):
            open_method(spec, device="cuda")


def test_importing_imports_nothing_heavy():
    heavy = "{'torch', 'kornia', 'onnxruntime'}"
    code = f"import sys, logpolar.evaluation.descriptors.registry; print({heavy} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_pair_describes_its_own_keypoints(gray):
    method = open_method("logpolar-sf", keypoints=20, threads=1)
    keypoints = method.source(to_bytes(gray[:160, :160]))
    assert len(keypoints) == 20
    assert np.array_equal(keypoints.xy, NetworkDetector("logpolar", 20, threads=1)(gray[:160, :160]).xy)
    descriptors = method.describer.describe(gray[:160, :160], keypoints)
    expected = open_method("logpolar-96-upright", threads=1).describer.describe(gray[:160, :160], keypoints)
    assert np.array_equal(descriptors, expected)
    with pytest.raises(LogpolarError, match="'logpolar-sf': has its own keypoints"):
        open_method("logpolar-sf")
