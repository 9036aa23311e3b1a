from __future__ import annotations

import hashlib
import json
import pickle
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save
from safetensors.torch import save_file

from damaged_bytes import one_line, try_damaged
from logpolar.errors import ModelError
from logpolar.models import export, load_model, shipped_models
from logpolar.models.cards import ModelCard, NetworkOptions
from logpolar.models.export import save_model
from logpolar.models.network import DescriptorNetwork
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.sampling import Cartesian, LogPolar
from logpolar.settings import DEFAULT_MODEL

SHIPPED = Path(str(resources.files("logpolar.models") / "weights" / f"{DEFAULT_MODEL}.safetensors"))


@pytest.fixture(scope="module")
def parts():
    """Tensors and metadata of a good model file, to spoil."""
    with safe_open(SHIPPED, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.fixture
def spoil(parts, tmp_path):
    """Write the good model file again with some of its metadata or tensors changed; None leaves one out.

    Without its hash, which would refuse all of them.
    """

    def write(metadata=None, tensors=None):
        changed = [{**good, **(new or {})} for good, new in zip(parts, (tensors, metadata), strict=True)]
        changed[1].pop("hash", None)
        kept = [{name: value for name, value in values.items() if value is not None} for values in changed]
        path = tmp_path / "spoilt.safetensors"
        path.write_bytes(save(kept[0], kept[1]))
        return path

    return write


def changed_card(parts, **changes):
    """The good card as JSON, with entries of some of its sections changed."""
    card = json.loads(parts[1]["card"])
    for section, entries in changes.items():
        card[section] = {**card[section], **entries} if isinstance(entries, dict) else entries
    return json.dumps(card)


def assert_refused(path, match=None):
    with pytest.raises(ModelError, match=match) as caught:
        load_model(path)
    assert Path(path).name in str(caught.value)


CARD = ModelCard(
    "tiny",
    "A test.",
    LogPolar(40, 8, 16, inner_radius=0.25, antialias=False),
    NetworkOptions(8, 16, circular=True, dropout=0.2),
    {"data": "none", "seed": 3, "nested": {"steps": [1, 2]}},
    {"nothing": {"N": 0, "fpr95": 0.25}},
    "MIT",
)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = DescriptorNetwork(CARD.network)
    network(torch.rand(8, 8, 16))  # moves the statistics of the batch normalisation
    return network.eval()


@pytest.fixture(scope="module")
def path(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.safetensors"
    with pytest.MonkeyPatch.context() as context:
        context.setattr(export, "export_graph", lambda network: b"graph")  # takes seconds, and is not looked at
        save_model(path, network, CARD)
    return path


class TestRoundTrip:
    def test_card(self, path):
        model = load_model(path)
        assert model.card == CARD
        assert model.name == "tiny"
        assert model.sampling == CARD.sampling

    def test_weights(self, path, network):
        model = load_model(path)
        for name, values in network.state_dict().items():
            if name.endswith("weight"):
                expected = values.numpy().astype(np.float16).astype(np.float32)
                np.testing.assert_array_equal(model.weights[name], expected)
            elif not name.endswith("num_batches_tracked"):
                np.testing.assert_array_equal(model.weights[name], values.numpy())
        assert all(values.dtype == np.float32 for values in model.weights.values())

    def test_network(self, path, network):
        loaded = load_model(path).network()
        assert not loaded.training
        assert loaded.options == CARD.network
        patches = torch.rand(5, 8, 16)
        with torch.no_grad():
            torch.testing.assert_close(loaded(patches), network(patches), atol=5e-3, rtol=0)

    def test_digest_is_that_of_the_file(self, path):
        assert load_model(path).digest == hashlib.sha256(path.read_bytes()).hexdigest()

    @pytest.mark.parametrize("sampling", [LogPolar(), LogPolar(12, inner_radius=0.5), Cartesian(antialias=False)])
    def test_card_as_json(self, sampling):
        card = ModelCard("name", "words", sampling, NetworkOptions(), {"seed": 1}, {"a": 0.5})
        assert ModelCard.from_json(card.to_json()) == card


class TestVersions:
    SMALL = NetworkOptions(8, 8, circular=True, channels=(16, 16, 32), strides=(1, 2, 2))  # as that of training_runs.py

    def test_files_say_version_3_with_channels_and_strides(self, path):
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
        assert metadata["version"] == "3"
        written = json.loads(metadata["card"])["network"]
        assert written["channels"] == [32, 32, 64, 64, 128, 128]
        assert written["strides"] == [1, 1, 2, 1, 2, 1]

    def test_other_channels_and_strides_come_back(self, tmp_path, export_once):
        card = ModelCard("small", "", LogPolar(96, 8, 8), self.SMALL)
        network = DescriptorNetwork(self.SMALL).eval()
        with export_once():
            save_model(tmp_path / "m.safetensors", network, card)
        model = load_model(tmp_path / "m.safetensors")
        assert model.card == card
        patches = torch.rand(4, 8, 8)
        with torch.no_grad():
            expected = network(patches).numpy()
        for found in (
            model.network()(patches).detach().numpy(),
            OnnxruntimeDescriber(model).describe_patches(patches.numpy()),
        ):
            np.testing.assert_allclose(found, expected, atol=5e-3)

    def test_version_2_has_the_default_ones(self, spoil, parts):
        """As it was written before there was a choice."""
        card = json.loads(parts[1]["card"])
        for key in ("channels", "strides"):
            card["network"].pop(key, None)
        model = load_model(spoil({"version": "2", "card": json.dumps(card)}))
        assert model.card.network.channels == NetworkOptions().channels
        assert model.card.network.strides == NetworkOptions().strides
        assert OnnxruntimeDescriber(model).describe_patches(np.zeros((1, 32, 32), np.float32)).shape == (1, 128)

    @pytest.mark.parametrize(
        "entries",
        [
            {"channels": [16, 16]},
            {"channels": [16, 16], "strides": [2]},
            {"channels": 16, "strides": 2},
            {"channels": ["16"], "strides": [1]},
            {"channels": [], "strides": []},
        ],
    )
    def test_layers_that_cannot_be(self, spoil, parts, entries):
        assert_refused(spoil({"card": changed_card(parts, network=entries)}), "channels|strides")

    def test_a_graph_of_other_layers_is_refused(self, spoil, parts):
        layers = {"channels": [32, 32, 64, 64, 128, 64], "strides": [1, 1, 2, 1, 2, 1]}
        model = load_model(spoil({"card": changed_card(parts, network=layers)}))
        with pytest.raises(ModelError, match="does not belong to the network"):
            OnnxruntimeDescriber(model)


class TestHash:
    @pytest.mark.parametrize("place", [-1, -1000, -20_000])
    def test_one_flipped_bit_of_the_weights_is_seen(self, path, tmp_path, place):
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        (tmp_path / "m.safetensors").write_bytes(content)
        assert_refused(tmp_path / "m.safetensors", "not those that were written")

    def test_another_graph_is_seen(self, path, tmp_path):
        with safe_open(path, framework="numpy") as file:
            tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
        (tmp_path / "m.safetensors").write_bytes(save(tensors, {**metadata, "graph": "Z3JhcGg1"}))
        assert_refused(tmp_path / "m.safetensors", "not those that were written")

    def test_files_of_earlier_versions_have_none(self, spoil):
        assert load_model(spoil()).name == DEFAULT_MODEL


class TestNoModel:
    def test_unknown_name_lists_those_there_are(self):
        with pytest.raises(ModelError) as caught:
            load_model("logpolar-97")
        assert "logpolar-97" in str(caught.value)
        assert all(name in str(caught.value) for name in shipped_models())

    def test_missing_file(self, tmp_path):
        assert_refused(tmp_path / "missing.safetensors")

    def test_folder(self, tmp_path):
        assert_refused(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"\0", b"Just some text, not a model at all.\n" * 20])
    def test_not_safetensors(self, tmp_path, content):
        path = tmp_path / "renamed.safetensors"
        path.write_bytes(content)
        assert_refused(path)

    @pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
    def test_truncated(self, tmp_path, share):
        data = SHIPPED.read_bytes()
        path = tmp_path / "truncated.safetensors"
        path.write_bytes(data[: int(share * len(data))])
        assert_refused(path)

    def test_pickle_is_refused_and_never_run(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return Path.touch, (tmp_path / "sprung",)

        path = tmp_path / "pickle.safetensors"
        path.write_bytes(pickle.dumps(Trap()))
        assert_refused(path)
        torch.save({"weights": torch.zeros(3), "trap": Trap()}, path)
        assert_refused(path)
        assert not (tmp_path / "sprung").exists()
        pickle.loads(pickle.dumps(Trap()))
        assert (tmp_path / "sprung").exists()  # the trap works

    def test_plain_safetensors(self, tmp_path, parts):
        path = tmp_path / "plain.safetensors"
        path.write_bytes(save(parts[0]))
        assert_refused(path, "not a logpolar model")


class TestSpoilt:
    def test_only_what_is_spoilt_matters(self, spoil):
        assert load_model(spoil()).name == DEFAULT_MODEL

    @pytest.mark.parametrize("value", [None, "pt", ""])
    def test_format(self, spoil, value):
        assert_refused(spoil({"format": value}), "format")

    @pytest.mark.parametrize("value", [None, "1", "4"])
    def test_version(self, spoil, value):
        assert_refused(spoil({"version": value}), "version")

    @pytest.mark.parametrize("key", ["card", "graph"])
    def test_without_card_or_graph(self, spoil, key):
        assert_refused(spoil({key: None}), key)

    @pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", "3", '"card"', "{}"])
    def test_card_that_is_none(self, spoil, text):
        assert_refused(spoil({"card": text}))

    def test_unknown_pattern(self, spoil, parts):
        assert_refused(spoil({"card": changed_card(parts, sampling={"pattern": "hexagonal"})}), "hexagonal")

    @pytest.mark.parametrize(
        "changes",
        [
            {"sampling": {"twist": 3}},
            {"network": {"twist": 3}},
            {"twist": 3},
        ],
    )
    def test_unknown_key(self, spoil, parts, changes):
        card = json.loads(parts[1]["card"])
        for section, entries in changes.items():
            card[section] = {**card[section], **entries} if section in card else entries
        assert_refused(spoil({"card": json.dumps(card)}), "twist")

    @pytest.mark.parametrize("section", ["name", "sampling", "network"])
    def test_incomplete_card(self, spoil, parts, section):
        card = json.loads(parts[1]["card"])
        del card[section]
        assert_refused(spoil({"card": json.dumps(card)}), section)

    @pytest.mark.parametrize(
        "changes",
        [
            {"sampling": {"lambda": -1}},
            {"sampling": {"lambda": "wide"}},
            {"sampling": {"inner_radius": "middle"}},
            {"sampling": {"rows": 16}},
            {"network": {"columns": 64}},
            {"network": {"rows": 30}, "sampling": {"rows": 30}},
            {"network": {"dropout": 2}},
            {"network": {"dropout": "x"}},
            {"network": {"channels": [32, 32, 64, 64, 128, 10**9]}},
            {"sampling": {"pattern": []}},
            {"sampling": {"lambda": 10**400}},
            {"network": None},
        ],
    )
    def test_values_that_cannot_be(self, spoil, parts, changes):
        assert_refused(spoil({"card": changed_card(parts, **changes)}))

    def test_size_of_sampling_and_network_differ(self, spoil, parts):
        assert_refused(spoil({"card": changed_card(parts, sampling={"rows": 64})}), "patch size")

    def test_graph_that_is_not_base64(self, spoil):
        assert_refused(spoil({"graph": "!!!"}))


class TestWeightsThatDoNotFit:
    @pytest.fixture(
        params=[
            {"head.weight": None},
            {"head.weight": np.zeros((128, 128, 4, 4), np.float16)},
            {"blocks.0.norm.running_mean": None},
            {"another": np.zeros(3, np.float32)},
        ],
        ids=["missing", "shape", "statistics", "unknown"],
    )
    def model(self, request, spoil):
        return load_model(spoil(tensors=request.param))

    def test_torch(self, model):
        with pytest.raises(ModelError, match=model.name):
            model.network()

    def test_onnxruntime(self, model):
        with pytest.raises(ModelError, match=model.name):
            OnnxruntimeDescriber(model)

    def test_card_of_another_size(self, spoil, parts):
        model = load_model(spoil({"card": changed_card(parts, sampling={"rows": 64}, network={"rows": 64})}))
        with pytest.raises(ModelError, match=model.name):
            model.network()

    @pytest.mark.parametrize("graph", ["", "AAAA"])
    def test_graph_that_is_none(self, spoil, graph):
        model = load_model(spoil({"graph": graph}))
        with pytest.raises(ModelError, match=model.name):
            OnnxruntimeDescriber(model)


def test_a_network_in_channels_last_order_is_saved_correctly(tmp_path, monkeypatch):
    """Training leaves networks in that order; safetensors writes memory as it lies."""
    monkeypatch.setattr(export, "export_graph", lambda network: b"graph")
    options = NetworkOptions(8, 8)
    network = DescriptorNetwork(options).eval().to(memory_format=torch.channels_last)
    save_model(tmp_path / "m.safetensors", network, ModelCard("m", "", LogPolar(96, 8, 8), options))
    patches = torch.rand(4, 8, 8)
    cosine = (load_model(tmp_path / "m.safetensors").network()(patches) * network(patches)).sum(1)
    assert cosine.min() > 0.999


def test_a_file_of_bfloat16_tensors_is_refused(tmp_path):
    save_file({"a": torch.zeros(3, dtype=torch.bfloat16)}, tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match=r"m\.safetensors"):
        load_model(tmp_path / "m.safetensors")


def test_a_card_for_another_network_than_the_graphs_is_refused(spoil, parts):
    card = json.loads(parts[1]["card"])
    card["network"]["circular"] = not card["network"]["circular"]
    with pytest.raises(ModelError, match="does not belong to the network"):
        OnnxruntimeDescriber(load_model(spoil(metadata={"card": json.dumps(card)})))


@pytest.mark.parametrize("entry", ["name", "description", "training", "figures", "licence", "network", "sampling"])
def test_a_card_with_an_entry_missing_is_refused(spoil, parts, entry):
    card = json.loads(parts[1]["card"])
    del card[entry]
    with pytest.raises(ModelError, match=entry):
        load_model(spoil(metadata={"card": json.dumps(card)}))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("network", "normalisation", "ring"),
        ("network", "circular", "yes"),
        ("network", "rows", 32.0),
        ("sampling", "antialias", 1),
        ("sampling", "radius_ratio", "wide"),
    ],
)
def test_a_card_with_an_impossible_value_is_refused(spoil, parts, section, key, value):
    card = json.loads(parts[1]["card"])
    card[section][key] = value
    with pytest.raises(ModelError, match="damaged model file"):
        load_model(spoil(metadata={"card": json.dumps(card)}))


def test_weights_that_are_not_finite_are_refused(spoil, parts):
    name, values = next(iter(parts[0].items()))
    with pytest.raises(ModelError, match="not finite"):
        load_model(spoil(tensors={name: values * np.nan}))


def test_a_card_for_other_patches_than_the_graphs_is_refused(spoil, parts):
    card = json.loads(parts[1]["card"])
    card["sampling"]["rows"] = card["network"]["rows"] = 64
    with pytest.raises(ModelError, match="does not belong to the network"):
        OnnxruntimeDescriber(load_model(spoil(metadata={"card": json.dumps(card)})))


def test_damaged_bytes_are_the_model_or_an_error_in_one_line(tmp_path):
    path, data, whole = tmp_path / "damaged.safetensors", SHIPPED.read_bytes(), load_model(SHIPPED)

    def attempt(damaged):
        path.write_bytes(damaged)
        try:
            found = load_model(path)
        except ModelError as error:
            assert one_line(error)
        else:
            assert found.graph == whole.graph
            assert all(np.array_equal(found.weights[name], whole.weights[name]) for name in whole.weights)

    try_damaged(data, attempt)
