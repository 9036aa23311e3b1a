from __future__ import annotations

import dataclasses
from dataclasses import fields, replace

import pytest

from damaged_bytes import one_line, try_damaged
from logpolar.errors import LogpolarError
from logpolar.models.cards import NetworkOptions
from logpolar.sampling.patterns import Cartesian, LogPolar
from logpolar.training.config import config_to_dict, config_to_toml, find_files, read_config, recipe_to_toml
from logpolar.training.options import DataSource, TrainingConfig
from logpolar.training.recipes import RECIPES

DATA = '[[data]]\nfiles = ["a.h5"]\n'
SECTIONS = ("batch", "augmentation", "loss", "distillation", "optimisation", "run")


@pytest.fixture
def read(tmp_path):
    def read_text(text, *changes):
        (tmp_path / "my.toml").write_text(text)
        return read_config(tmp_path / "my.toml", changes)

    return read_text


@pytest.fixture
def assert_refused(read):
    """Reading ends with one line that has the file and these words."""

    def check(text, *words, changes=()):
        with pytest.raises(LogpolarError) as caught:
            read(text, *changes)
        line = str(caught.value)
        assert "\n" not in line
        assert "my.toml: " in line
        for word in words:
            assert word in line, line

    return check


def other_value(options, each: dataclasses.Field):
    """A value that a field may have, and does not have in these options."""
    low, choices, now = each.metadata["low"], each.metadata["choices"], getattr(options, each.name)
    if choices:
        return next(choice for choice in choices if choice != now)
    if each.name == "teacher":
        return "/models/other.safetensors"
    if isinstance(now, bool):
        return not now
    if isinstance(now, str):
        return 'quoted "text" \\ with ünïcode 日本 🙂,\nlines, \ttabs and \x7f'
    return int(low or 0) + 77 if isinstance(now, int) else float(low or 0) + 0.123456789012345


def altered(base: TrainingConfig) -> TrainingConfig:
    """Every key another value than in the recipe."""
    sections = {}
    for section in SECTIONS:
        options = getattr(base, section)
        sections[section] = replace(options, **{each.name: other_value(options, each) for each in fields(options)})
    return replace(
        base,
        name="my model.v2",
        description=other_value(base, TrainingConfig.__dataclass_fields__["description"]),
        sources="photos",
        data=(DataSource(("/data/a.h5", "/data/*.h5"), 0.0), DataSource(("/other/b[0-9].h5",), 2.5)),
        sampling=LogPolar(31.5, 16, 24, inner_radius=0.25, radius_ratio=99.0, antialias=False, outside="mean"),
        network=NetworkOptions(16, 24, not base.network.circular, 0.3, channels=(8, 24), strides=(2, 2)),
        **sections,
    )


class TestRoundTrip:
    @pytest.mark.parametrize("recipe", RECIPES)
    def test_recipe(self, read, recipe):
        config = replace(RECIPES[recipe], data=(DataSource(("/data/a.h5",)),))
        assert read(config_to_toml(config)) == config

    @pytest.mark.parametrize("recipe", RECIPES)
    @pytest.mark.parametrize("base", RECIPES)
    def test_every_key_changed(self, read, recipe, base):
        """Whatever recipe it starts from: all is said."""
        config = altered(RECIPES[recipe])
        for section in SECTIONS:
            ours, theirs = (dataclasses.asdict(getattr(each, section)) for each in (config, RECIPES[recipe]))
            assert all(ours[key] != theirs[key] for key in ours), section
        assert read(f'recipe = "{base}"\n{config_to_toml(config)}') == config

    def test_cartesian(self, read):
        config = replace(
            RECIPES["default"],
            data=(DataSource(("/data/a.h5",)),),
            sampling=Cartesian(7.5, 8, 12, antialias=False, outside="mean"),
            network=NetworkOptions(8, 12, False, 0.0),
        )
        assert read(config_to_toml(config)) == config

    def test_every_line_says_what_it_means(self):
        lines = config_to_toml(replace(RECIPES["paper"], data=(DataSource(("a.h5",)),))).splitlines()
        keys = [line for line in lines if line and not line.startswith("[")]
        assert len(keys) > 40
        assert all(len(line.partition("  # ")[2]) > 10 for line in keys)

    @pytest.mark.parametrize("recipe", RECIPES)
    def test_recipe_to_start_from(self, read, recipe, tmp_path):
        found = read(recipe_to_toml(recipe))
        assert replace(found, data=()) == RECIPES[recipe]
        assert found.data == (DataSource((str(tmp_path / "set" / "*.h5"),)),)

    def test_plain_values(self):
        values = config_to_dict(RECIPES["paper"])
        assert values["sampling"]["pattern"] == "log-polar"
        assert values["sampling"]["lambda"] == 96
        assert values["batch"] == {"pairs": 10, "per_pair": 100, "near": 7.0, "near_sizes": 0.0}


class TestReading:
    def test_what_is_not_said_is_the_recipes(self, read):
        for name, recipe in RECIPES.items():
            found = read(f'recipe = "{name}"\n{DATA}[loss]\nmargin = 2\n')
            assert found.loss == replace(recipe.loss, margin=2.0)
            assert isinstance(found.loss.margin, float)
            assert replace(found, data=(), loss=recipe.loss) == recipe

    def test_default_recipe(self, read):
        assert replace(read(DATA), data=()) == RECIPES["default"]

    def test_network_has_the_size_of_the_patches(self, read):
        found = read(f"{DATA}[sampling]\nrows = 8\ncolumns = 16\n")
        assert (found.network.rows, found.network.columns) == (8, 16)

    def test_other_pattern_keeps_what_both_have(self, read):
        found = read(f'{DATA}[sampling]\npattern = "cartesian"\n')
        assert found.sampling == Cartesian(outside="mean")
        assert not found.network.circular
        assert read(f'recipe = "paper"\n{DATA}[sampling]\npattern = "cartesian"\n').sampling == Cartesian(
            antialias=False
        )

    def test_circular_can_be_asked_for(self, read):
        assert read(f'recipe = "paper"\n{DATA}[network]\ncircular = true\n').network.circular


class TestNetwork:
    def test_channels_and_strides(self, read):
        text = f"{DATA}[network]\nchannels = [16, 32, 48]\nstrides = [2, 1, 2]\n"
        for found in (read(text), read(DATA, "network.channels=[16,32,48]", "network.strides=[2,1,2]")):
            assert (found.network.channels, found.network.strides) == ((16, 32, 48), (2, 1, 2))

    def test_those_of_the_recipe(self, read):
        found = read(f'recipe = "small"\n{DATA}[network]\ndropout = 0.2\n')
        assert found.network == replace(RECIPES["small"].network, dropout=0.2)


class TestTeacher:
    def test_a_shipped_model_by_its_name(self, read):
        assert read(DATA, "distillation.teacher=logpolar-96").distillation.teacher == "logpolar-96"

    def test_a_file_from_the_configs_folder(self, read, tmp_path):
        found = read(f'{DATA}[distillation]\nteacher = "models/big.safetensors"\n')
        assert found.distillation.teacher == str(tmp_path / "models" / "big.safetensors")
        elsewhere = tmp_path / "run" / "config.toml"
        elsewhere.parent.mkdir()
        elsewhere.write_text(config_to_toml(found))
        assert read_config(elsewhere).distillation == found.distillation

    @pytest.mark.parametrize(("changes", "wanted"), [([], True), (["weight=0"], False), (["teacher="], False)])
    def test_can_be_turned_off(self, read, changes, wanted):
        changes = ["loss.triplet=1", *(f"distillation.{change}" for change in changes)]
        found = read(f'recipe = "small"\n{DATA}', *changes)
        assert found.distillation.wanted == wanted

    def test_nothing_to_learn(self, assert_refused, read):
        nothing = ["loss.triplet=0", "loss.second_order=0"]
        assert_refused(DATA, "[loss] all weights are 0 and there is no teacher", changes=nothing)
        assert read(DATA, *nothing, "distillation.teacher=logpolar-96").loss.triplet == 0


class TestFiles:
    def test_from_the_configs_folder(self, read, tmp_path, monkeypatch):
        (tmp_path / "set").mkdir()
        for name in ("b.h5", "a.h5", "c.txt"):
            (tmp_path / "set" / name).touch()
        (tmp_path / "alone.h5").touch()
        config = read('[[data]]\nfiles = ["set/*.h5", "alone.h5"]\n')
        assert find_files(config.data[0]) == [
            tmp_path / "set" / "a.h5",
            tmp_path / "set" / "b.h5",
            tmp_path / "alone.h5",
        ]
        monkeypatch.chdir(tmp_path)
        assert find_files(read_config("my.toml").data[0]) == find_files(config.data[0])

    def test_a_copy_of_the_config_elsewhere_names_the_same_files(self, read, tmp_path, monkeypatch):
        (tmp_path / "a.h5").touch()
        read(DATA)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.toml").write_text(config_to_toml(read_config("my.toml")))
        assert find_files(read_config("run/config.toml").data[0]) == [tmp_path / "a.h5"]

    def test_folder_whose_name_looks_like_a_glob(self, tmp_path):
        folder = tmp_path / "set[1]*"
        folder.mkdir()
        (folder / "a.h5").touch()
        (folder / "my.toml").write_text('[[data]]\nfiles = ["*.h5"]')
        assert find_files(read_config(folder / "my.toml").data[0]) == [folder / "a.h5"]

    def test_absolute(self, read, tmp_path):
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "a.h5").touch()
        path = tmp_path / "deep" / "a.h5"
        assert find_files(read(f'[[data]]\nfiles = ["{path.as_posix()}"]\n').data[0]) == [path]

    @pytest.mark.parametrize("pattern", ["none.h5", "none*.h5"])
    def test_nothing_found(self, read, tmp_path, pattern):
        (tmp_path / "a.h5").touch()
        source = read(f'[[data]]\nfiles = ["a.h5", "{pattern}"]\n').data[0]
        with pytest.raises(LogpolarError) as caught:
            find_files(source)
        assert str(caught.value) == f"{tmp_path / pattern}: no such correspondence file"


WRONG = {
    "unknown key": ("[loss]\nmargn = 1", "[loss] has no key 'margn'", "did you mean 'margin'?"),
    "nothing like it": (
        "[loss]\nxyz = 1",
        "[loss] has no key 'xyz'",
        "known: softmax, scale, angular_margin, triplet, margin, second_order",
    ),
    "unknown section": ("[los]\nmargin = 1", "no key 'los'", "did you mean 'loss'?"),
    "key in sampling": ("[sampling]\nlamda = 1", "[sampling] has no key 'lamda'", "did you mean 'lambda'?"),
    "key of the other pattern": ('[sampling]\npattern = "cartesian"\ninner_radius = 1', "[sampling]", "'inner_radius'"),
    "key in network": ("[network]\nrows = 32", "[network] has no key 'rows'"),
    "true for a number": ("[loss]\nmargin = true", "[loss] margin must be a number, not True"),
    "true for a whole number": ("[batch]\npairs = true", "[batch] pairs must be an integer, not True"),
    "number for true": ("[run]\ntensorboard = 1", "[run] tensorboard must be true or false, not 1"),
    "text for a number": ('[loss]\nmargin = "1"', "[loss] margin must be a number, not '1'"),
    "not whole": ("[optimisation]\nsteps = 1.5", "[optimisation] steps must be an integer, not 1.5"),
    "number for a text": ("[run]\ndevice = 1", "[run] device must be a string, not 1"),
    "list for a text": ("[run]\ndevice = ['cpu']", "[run] device must be a string"),
    "date": ("[optimisation]\nsteps = 2020-01-01", "[optimisation] steps must be an integer"),
    "too low": ("[batch]\npairs = 0", "[batch] pairs must be at least 1, not 0"),
    "below 0": ("[loss]\nmargin = -0.5", "[loss] margin must be at least 0, not -0.5"),
    "too high": ("[optimisation]\nmomentum = 1.5", "[optimisation] momentum must be between 0 and 1, not 1.5"),
    "seed": ("[run]\nseed = 9223372036854775808", "[run] seed must be between 0 and"),
    "nan": ("[loss]\nmargin = nan", "[loss] margin must be a number, not nan"),
    "inf": ("[optimisation]\nlearning_rate = inf", "[optimisation] learning_rate must be a number, not inf"),
    "choice": ('[optimisation]\noptimiser = "adam"', "[optimisation] optimiser must be sgd or adamw, not 'adam'"),
    "section that is a value": ("loss = 3", "[loss] must be a section with keys"),
    "sampling that is a value": ("sampling = 3", "[sampling] must be a section with keys"),
    "network that is a list": ("network = []", "[network] must be a section with keys"),
    "lambda": ("[sampling]\nlambda = -1", "[sampling] lambda must be a positive number, not -1"),
    "lambda nan": ("[sampling]\nlambda = nan", "[sampling] lambda must be a positive number"),
    "lambda text": ('[sampling]\nlambda = "96"', "[sampling] lambda must be a positive number"),
    "lambda true": ("[sampling]\nlambda = true", "[sampling] lambda"),
    "rows true": ("[sampling]\nrows = true", "[sampling] rows"),
    "inner radius": ("[sampling]\ninner_radius = 1.5", "[sampling] inner_radius must be 'covariant'"),
    "inner radius true": ("[sampling]\ninner_radius = true", "[sampling] inner_radius"),
    "radius ratio": ("[sampling]\nradius_ratio = 1", "[sampling] radius_ratio must be above 1"),
    "antialias": ("[sampling]\nantialias = 1", "[sampling] antialias must be true or false"),
    "outside": ('[sampling]\noutside = "black"', "[sampling] outside must be 'reflect' or 'mean', not 'black'"),
    "pattern": ('[sampling]\npattern = "polar"', "[sampling] pattern must be log-polar or cartesian, not 'polar'"),
    "rows": ("[sampling]\nrows = 30", "[sampling] rows and columns must be multiples of 4, not 30 x 32"),
    "no rows": ("[sampling]\nrows = 0", "[sampling]", "row"),
    "columns": ("[sampling]\ncolumns = 8.0", "[sampling]", "column"),
    "dropout": ("[network]\ndropout = 1", "[network] dropout must lie in [0, 1), not 1"),
    "many channels": ("[network]\nchannels = [1000000000]\nstrides = [1]", "[network] the network is too large"),
    "many rows": ("[sampling]\nrows = 1000000", "too large"),
    "batch": ("[batch]\npairs = 1000000", "[batch] pairs x per_pair must be 65536 at most"),
    "name with NUL": ('name = "a\\u0000b"', "name must be usable as a file name"),
    "dropout text": ('[network]\ndropout = "x"', "[network] dropout must be a number, not 'x'"),
    "channels": ("[network]\nchannels = [16, 16]", "[network] there are 2 channels, but 6 strides"),
    "channels number": ("[network]\nchannels = 16", "[network] channels must be a list of integers, not 16"),
    "channels text": ('[network]\nchannels = ["a"]', "[network] channels must be a list of integers"),
    "strides": ("[network]\nstrides = [1, 1, 4, 1, 1, 1]", "[network] strides must be 1 or 2"),
    "too many strides": (
        "[network]\nstrides = [2, 2, 2, 2, 2, 2]",
        "[sampling] rows and columns must be multiples of 64, not 32 x 32",
    ),
    "teacher": ("[distillation]\nteacher = 3", "[distillation] teacher must be a string, not 3"),
    "teacher's weight": ("[distillation]\nweight = -1", "[distillation] weight must be at least 0, not -1"),
    "dropout false": ("[network]\ndropout = false", "[network] dropout"),
    "circular": ("[network]\ncircular = 1", "[network] circular must be true or false"),
    "share": ('[[data]]\nfiles = ["b.h5"]\nshare = -1', "[[data]] share must be at least 0, not -1"),
    "files that are no list": ('[[data]]\nfiles = "b.h5"', "[[data]] files must be a list of strings, not 'b.h5'"),
    "files that are numbers": ("[[data]]\nfiles = [1]", "[[data]] files must be a list of strings"),
    "no files": ("[[data]]\nshare = 1", "[[data]] names no files"),
    "key in data": ('[[data]]\nfile = ["b.h5"]', "[[data]] has no key 'file'", "did you mean 'files'?"),
}


class TestWrong:
    @pytest.mark.parametrize("case", WRONG)
    def test_one_line_with_section_and_key(self, assert_refused, case):
        text, *words = WRONG[case]
        top_level = "[" not in text.split("=")[0]
        assert_refused(f"{text}\n{DATA}" if top_level else f"{DATA}{text}\n", *words)

    @pytest.mark.parametrize("recipe", ['"papr"', "3", "[]", '["paper"]', "{}"])
    def test_unknown_recipe(self, assert_refused, recipe):
        assert_refused(f"recipe = {recipe}\n{DATA}", "no recipe", "known: default, paper, small")

    @pytest.mark.parametrize("text", ["", "data = []", "data = 3"])
    def test_no_data(self, assert_refused, text):
        assert_refused(text, "there is no [[data]]")

    def test_data_with_one_bracket(self, assert_refused):
        assert_refused('[data]\nfiles = ["a.h5"]', "[[data]] needs two brackets")

    def test_all_shares_0(self, assert_refused):
        text = '[[data]]\nfiles = ["a.h5"]\nshare = 0\n'
        assert_refused(text + text, "[[data]]: the shares must not all be 0")

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a"])
    def test_name_that_is_no_file_name(self, assert_refused, name):
        assert_refused(f'name = "{name}"\n{DATA}', "name must be usable as a file name")

    def test_broken_toml(self, assert_refused):
        assert_refused("[loss\nmargin = 1", "not a TOML file", "line 1")

    def test_not_utf8(self, tmp_path):
        (tmp_path / "my.toml").write_bytes(b'name = "\xff"')
        with pytest.raises(LogpolarError, match=r"my\.toml: not a TOML file"):
            read_config(tmp_path / "my.toml")

    def test_missing(self, tmp_path):
        with pytest.raises(LogpolarError, match=r"my\.toml: no such file"):
            read_config(tmp_path / "my.toml")


class TestChanges:
    def test_values_are_toml(self, read):
        found = read(
            f"{DATA}[optimisation]\nsteps = 3\n",
            "optimisation.steps=7",
            " run.seed = 5",
            "run.tensorboard=false",
            'run.device="cuda:1"',
            "loss.margin=2",
            'data=[{files=["/b.h5"], share=3}]',
        )
        assert (found.optimisation.steps, found.run.seed, found.run.tensorboard) == (7, 5, False)
        assert (found.run.device, found.loss.margin) == ("cuda:1", 2.0)
        assert found.data == (DataSource(("/b.h5",), 3.0),)

    def test_texts_need_no_quotes(self, read):
        found = read(DATA, "run.device=cuda:1", "name=mine", "sampling.inner_radius=paper", "recipe=paper")
        assert (found.run.device, found.name, found.sampling.inner_radius) == ("cuda:1", "mine", "paper")
        assert found.batch == RECIPES["paper"].batch

    def test_later_ones_win(self, read):
        assert read(DATA, "run.seed=1", "run.seed=2").run.seed == 2

    @pytest.mark.parametrize("change", ["run.seed", "run.seed.x=1", "=1", "run.=1", ""])
    def test_bad_form(self, assert_refused, change):
        assert_refused(DATA, "a change is written section.key=value", f"'{change}'", changes=[change])

    def test_data_have_no_single_section(self, assert_refused):
        assert_refused(DATA, "--set cannot change [[data]]", changes=["data.share=1"])

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ("run.sed=1", "did you mean 'seed'"),
            ("run.seed=x", "[run] seed must be an integer, not 'x'"),
            ("run.seed=", "[run] seed must be an integer, not ''"),
            ("rn.seed=1", "no key 'rn'"),
            ("loss=1", "[loss] must be a section"),
        ],
    )
    def test_checked_like_the_file(self, assert_refused, change, words):
        assert_refused(DATA, words, changes=[change])


def test_damaged_text_is_a_config_or_an_error_in_one_line(tmp_path):
    path = tmp_path / "c.toml"

    def attempt(data):
        path.write_bytes(data)
        try:
            config_to_toml(read_config(path))
        except LogpolarError as error:
            assert one_line(error)

    try_damaged(recipe_to_toml("default").encode(), attempt, 40)
