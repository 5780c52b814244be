"""Every published set is read right, shown on small made-up files in the publisher's format: no real file is needed.

Expected rows are decoded by hand from the publisher's documentation (place of a field, meaning of a code), not from the
schemas, so that a column misread, labels shifted or parts exchanged is seen.
"""

import gzip
import hashlib
import io
import math
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import scipy.io
import torch

from noisewise import data as sets
from noisewise.data.files import FILES, Download
from noisewise.errors import DataError

NOWHERE = Download(("http://127.0.0.1:9/file",), f"sha256:{'0' * 64}")


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Put a file where the user's own files are; its published checksum becomes its own."""
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    monkeypatch.setenv("NOISEWISE_CACHE", str(tmp_path / "cache"))

    def give(name, content):
        raw = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        known = replace(FILES[name], sha256=hashlib.sha256(raw).hexdigest(), download=NOWHERE)
        monkeypatch.setitem(FILES, name, known)

    return give


def scaled(text, low, high, *, log=False):
    """A number's place between low and high as a number from -1 to 1."""
    bend = math.log1p if log else float
    share = (bend(float(text)) - bend(low)) / (bend(high) - bend(low))
    return round(min(max(2 * share - 1, -1), 1), 4)


def decoded(data):
    """Rows as {column: text or number}: features, then the label as "y", then groups as "by NAME"."""
    found = []
    for place, x in enumerate(data.x.tolist()):
        row = {}
        for name, value in zip(data.schema.feature_names, x, strict=True):
            column, is_category, text = name.partition("=")
            if not is_category:
                row[column] = round(value, 4)
            elif value == 1:
                assert column not in row
                row[column] = text
        y = data.y[place].item()
        row["y"] = data.classes[y] if data.classes else round(y, 4)
        for name, labels in data.groups.items():
            row[f"by {name}"] = data.group_names[name][int(labels[place])]
        found.append(row)
    return found


def in_order(rows):
    return sorted(rows, key=lambda row: sorted((name, str(value)) for name, value in row.items()))


def same_rows(parts, expected):
    """The parts are the expected rows, each once, and all of them are public."""
    assert all(part.public for part in parts)
    found = in_order(row for part in parts for row in decoded(part))
    for mine, theirs in zip(found, in_order(expected), strict=True):
        assert mine == pytest.approx(theirs, abs=2e-4)


# --- Adult: https://archive.ics.uci.edu/dataset/2/adult

ADULT = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
50, Self-emp-not-inc, 83311, HS-grad, 9, Married-civ-spouse, ?, Husband, Black, Male, 0, 1902, 13, ?, >50K
28, Private, 338409, Masters, 14, Divorced, Prof-specialty, Wife, Asian-Pac-Islander, Female, 15024, 0, 45, Cuba, >50K
61, ?, 12285, 11th, 7, Widowed, Sales, Unmarried, Other, Female, 0, 0, 20, Mexico, <=50K
17, Local-gov, 99999, 10th, 6, Separated, Tech-support, Own-child, White, Female, 0, 2042, 99, India, <=50K
90, Private, 45781, Doctorate, 16, Married-AF-spouse, Sales, Other-relative, White, Male, 99999, 0, 1, Japan, >50K
"""
ADULT_TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
44, Private, 160323, Some-college, 10, Married-civ-spouse, Machine-op-inspct, Husband, Black, Male, 7688, 0, 40, England, >50K.

"""


def adult_row(line, *, groups=False):
    field = [text.strip() for text in line.split(",")]
    unknown = [text if text != "?" else "other" for text in field]
    row = {
        "age": scaled(field[0], 17, 90),
        "workclass": unknown[1],
        "education": field[3],
        "education_num": scaled(field[4], 1, 16),
        "marital_status": field[5],
        "occupation": unknown[6],
        "relationship": field[7],
        "capital_gain": scaled(field[10], 0, 99_999, log=True),
        "capital_loss": scaled(field[11], 0, 4_356, log=True),
        "hours_per_week": scaled(field[12], 1, 99),
        "native_country": unknown[13],
        "y": field[14].rstrip("."),
        "by race": field[8],
        "by sex": field[9],
    }
    return row | ({"race": field[8], "sex": field[9]} if groups else {})


def test_adult(put):
    put("tabular/adult.data", ADULT)
    put("tabular/adult.test", ADULT_TEST)
    parts = sets.adult(valid=2)
    assert [len(part) for part in parts] == [4, 2, 2]
    same_rows(parts[:2], map(adult_row, ADULT.splitlines()))
    assert decoded(parts.test) == [pytest.approx(adult_row(line), abs=2e-4) for line in ADULT_TEST.splitlines()[1:3]]
    assert parts.train.classes == ("<=50K", ">50K")  # class 1 is who earns more
    wider = sets.adult(valid=2, group_features=True)
    same_rows(wider[:2], [adult_row(line, groups=True) for line in ADULT.splitlines()])


# --- German credit: https://archive.ics.uci.edu/dataset/144/statlog+german+credit+data

GERMAN = """\
A11 6 A34 A43 1169 A65 A75 4 A93 A101 4 A121 67 A143 A152 2 A173 1 A192 A201 1
A12 48 A32 A43 5951 A61 A73 2 A92 A101 2 A121 22 A143 A152 1 A173 1 A191 A201 2
A14 12 A34 A46 2096 A61 A74 2 A91 A103 3 A122 25 A141 A151 1 A172 2 A191 A202 1
A13 42 A30 A410 7882 A62 A71 1 A94 A102 1 A124 26 A142 A153 3 A174 2 A191 A201 2
A11 24 A33 A40 4870 A63 A72 3 A95 A101 4 A123 53 A143 A153 4 A171 1 A192 A201 1
"""
GERMAN_FIELDS = (
    "checking_account", "months", "credit_history", "purpose", "amount", "savings", "employed_since", "installment_rate",
    "personal_status", "other_debtors", "resident_since", "property", "age", "other_plans", "housing", "credits_here",
    "job", "dependents", "telephone", "foreign_worker",
)  # fmt: skip
GERMAN_RANGES = {
    "months": (4, 72), "amount": (250, 18_424), "installment_rate": (1, 4), "resident_since": (1, 4), "age": (19, 75),
    "credits_here": (1, 4), "dependents": (1, 2),
}  # fmt: skip
WOMEN = ("A92", "A95")  # female: divorced, separated or married; female: single


def german_row(line, *, groups=False):
    field = line.split()
    row = {}
    for name, text in zip(GERMAN_FIELDS, field, strict=False):
        row[name] = scaled(text, *GERMAN_RANGES[name], log=name == "amount") if name in GERMAN_RANGES else text
    row |= {
        "y": {"1": "good", "2": "bad"}[field[20]],
        "by sex": "female" if field[8] in WOMEN else "male",
        "by age_group": "over 25" if int(field[12]) > 25 else "25 or younger",
    }
    return row if groups else {name: value for name, value in row.items() if name not in ("personal_status", "age")}


def test_german_credit(put):
    put("tabular/german.data", GERMAN)
    parts = sets.german_credit(valid=1)
    assert [len(part) for part in parts] == [3, 1, 1]
    same_rows(parts, map(german_row, GERMAN.splitlines()))
    assert parts.train.classes == ("bad", "good")
    same_rows(
        sets.german_credit(valid=1, group_features=True),
        [german_row(line, groups=True) for line in GERMAN.splitlines()],
    )


# --- COMPAS: https://github.com/propublica/compas-analysis

COMPAS_HEAD = (
    "id,name,first,last,sex,dob,age,age_cat,race,juv_fel_count,juv_misd_count,juv_other_count,priors_count,"
    "days_b_screening_arrest,c_case_number,c_charge_degree,is_recid,r_case_number,vr_case_number,score_text,two_year_recid"
)
COMPAS = """\
1,a b,a,b,Male,1947-04-18,69,Greater than 45,Other,0,0,1,0,-1,13011352,F,0,,,Low,0
2,c d,c,d,Female,1982-01-22,34,25 - 45,African-American,3,0,0,38,30,13001275,M,1,13009779,,High,1
3,e f,e,f,Male,1991-05-14,24,Less than 25,Caucasian,0,2,0,4,-30,13005330,F,1,13011511,,Medium,1
4,g h,g,h,Male,1993-01-21,23,Less than 25,Hispanic,0,13,0,1,0,13000570,F,0,,,Low,0
5,i j,i,j,Female,1973-01-22,43,25 - 45,Asian,0,0,17,2,0,12014130,M,0,,,Low,0
"""
LEFT_OUT = """\
6,k l,k,l,Male,1970-01-01,46,Greater than 45,Caucasian,0,0,0,7,31,1,F,0,,,Low,0
7,m n,m,n,Male,1970-01-01,46,Greater than 45,Caucasian,0,0,0,8,-31,1,F,0,,,Low,0
8,o p,o,p,Male,1970-01-01,46,Greater than 45,Caucasian,0,0,0,9,,1,F,0,,,Low,0
9,q r,q,r,Male,1970-01-01,46,Greater than 45,Caucasian,0,0,0,10,0,1,F,-1,,,Low,0
10,s t,s,t,Male,1970-01-01,46,Greater than 45,Caucasian,0,0,0,11,0,1,O,0,,,Low,0
11,u v,u,v,Male,1970-01-01,46,Greater than 45,Caucasian,0,0,0,12,0,1,F,0,,,N/A,0
"""
NAMING = ("name", "first", "last", "dob", "c_case_number", "r_case_number", "vr_case_number")


def compas_row(line, *, groups=False):
    field = dict(zip(COMPAS_HEAD.split(","), line.split(","), strict=True))
    row = {
        "priors_count": scaled(field["priors_count"], 0, 38, log=True),
        "juv_fel_count": scaled(field["juv_fel_count"], 0, 20, log=True),
        "juv_misd_count": scaled(field["juv_misd_count"], 0, 13, log=True),
        "juv_other_count": scaled(field["juv_other_count"], 0, 17, log=True),
        "c_charge_degree": field["c_charge_degree"],
        "y": {"0": "no", "1": "yes"}[field["two_year_recid"]],
    } | {f"by {name}": field[name] for name in ("race", "sex", "age_cat")}
    own = {"age": scaled(field["age"], 18, 96), **{name: field[name] for name in ("race", "sex", "age_cat")}}
    return row | (own if groups else {})


def test_compas(put, tmp_path):
    published = tmp_path / "compas-scores-two-years.csv"
    published.write_text(f"{COMPAS_HEAD}\n{COMPAS}{LEFT_OUT}")
    kept = FILES["tabular/compas-two-years.csv"].made(published)
    assert not set(kept.decode().splitlines()[0].split(",")) & set(NAMING)
    assert b"1947-04-18" not in kept
    put("tabular/compas-two-years.csv", kept)
    parts = sets.compas(valid=1)
    assert [len(part) for part in parts] == [3, 1, 1]
    same_rows(parts, map(compas_row, COMPAS.splitlines()))
    assert parts.train.classes == ("no", "yes")
    same_rows(
        sets.compas(valid=1, group_features=True), [compas_row(line, groups=True) for line in COMPAS.splitlines()]
    )


# --- California Housing: https://www.dcc.fc.up.pt/~ltorgo/Regression/cal_housing.html

HOUSING = """\
-122.230000,37.880000,41.000000,880.000000,129.000000,322.000000,126.000000,8.325200,452600.000000
-117.810000,33.780000,21.000000,7099.000000,1106.000000,2401.000000,1138.000000,3.125000,500001.000000
-121.970000,36.990000,52.000000,2230.000000,410.000000,1155.000000,377.000000,0.499900,83100.000000
-118.280000,34.040000,1.000000,460.000000,438.000000,5306.000000,404.000000,15.000100,112500.000000
-119.760000,36.770000,29.000000,1541.000000,316.000000,900.000000,294.000000,2.100000,54000.000000
"""


def housing_row(line):
    longitude, latitude, age, rooms, bedrooms, people, households, income, value = map(float, line.split(","))
    return {
        "medianIncome": scaled(income, 0.4999, 15.0001),
        "housingMedianAge": scaled(age, 1, 52),
        "rooms": scaled(rooms / households, 0, 142, log=True),
        "bedrooms": scaled(bedrooms / households, 0, 35, log=True),
        "population": scaled(people, 3, 35_682, log=True),
        "occupancy": scaled(people / households, 0, 1_244, log=True),
        "latitude": scaled(latitude, 32.54, 41.95),
        "longitude": scaled(longitude, -124.35, -114.31),
        "y": round((value - 250_000.5) / 250_000.5, 4),
    }


def test_california_housing(put, tmp_path):
    archive, raw = tmp_path / "cal_housing.tgz", HOUSING.encode()
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("CaliforniaHousing/cal_housing.data")
        member.size = len(raw)
        tar.addfile(member, io.BytesIO(raw))
    put("tabular/california_housing.csv", FILES["tabular/california_housing.csv"].made(archive))
    parts = sets.california_housing(valid=1)
    assert [len(part) for part in parts] == [3, 1, 1]
    assert parts.train.task == "regression"
    same_rows(parts, map(housing_row, HOUSING.splitlines()))


# --- Wine Quality: https://archive.ics.uci.edu/dataset/186/wine+quality

WINE_RANGES = {
    "fixed acidity": (3.8, 15.9), "volatile acidity": (0.1, 1.6), "citric acid": (0, 1.7), "residual sugar": (0.6, 65.8),
    "chlorides": (0.01, 0.61), "free sulfur dioxide": (1, 289), "total sulfur dioxide": (6, 440),
    "density": (0.987, 1.039), "pH": (2.7, 4.0), "sulphates": (0.2, 2.0), "alcohol": (8.0, 14.9),
}  # fmt: skip
WINE_HEAD = ";".join(f'"{name}"' for name in (*WINE_RANGES, "quality"))
RED = """\
7.4;0.7;0;1.9;0.076;11;34;0.9978;3.51;0.56;9.4;5
11.2;0.28;0.56;1.8;0.075;17;60;0.998;3.16;0.58;9.8;6
7.8;0.88;0.1;2.6;0.098;25;67;0.9968;3.2;0.68;9.9;4
"""
WHITE = """\
7;0.27;0.36;20.7;0.045;45;170;1.001;3;0.45;8.8;6
6.3;0.3;0.34;1.6;0.049;14;132;0.994;3.3;0.49;9.5;7
8.1;0.28;0.4;6.9;0.05;30;97;0.9951;3.26;0.44;10.1;8
6.2;0.32;0.16;7;0.045;30;136;0.9949;3.18;0.47;9.6;3
"""


def wine_row(line, colour, *, groups=False):
    *field, quality = line.split(";")
    logarithmic = ("residual sugar", "free sulfur dioxide")
    row = {
        name: scaled(text, *WINE_RANGES[name], log=name in logarithmic)
        for name, text in zip(WINE_RANGES, field, strict=True)
    }
    return row | {"y": (float(quality) - 5) / 5, "by colour": colour} | ({"colour": colour} if groups else {})


def test_wine_quality(put):
    put("tabular/winequality-red.csv", f"{WINE_HEAD}\n{RED}")
    put("tabular/winequality-white.csv", f"{WINE_HEAD}\n{WHITE}")

    def expected(**how):
        return [
            *(wine_row(line, "red", **how) for line in RED.splitlines()),
            *(wine_row(line, "white", **how) for line in WHITE.splitlines()),
        ]

    parts = sets.wine_quality(valid=2)
    assert [len(part) for part in parts] == [4, 2, 1]
    assert parts.train.task == "regression"
    same_rows(parts, expected())
    same_rows(sets.wine_quality(valid=2, group_features=True), expected(groups=True))
    same_rows(sets.wine_quality(valid=1, colour="white"), [wine_row(line, "white") for line in WHITE.splitlines()])
    assert len(sets.wine_quality(colour="white").valid) == 0  # a tenth of four


# --- images

CLOTHES = [
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
]  # fmt: skip  # https://github.com/zalandoresearch/fashion-mnist#labels
OBJECTS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]  # batches.meta.txt


def idx(values):
    return gzip.compress(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes())


@pytest.fixture
def images(put):
    """Images that show their number and their label: the pixel at [0, 0] is 10 part + label, so nothing can be exchanged."""
    for folder in ("mnist", "fashion_mnist"):
        for number, (part, count) in enumerate((("train", 20), ("t10k", 10))):
            pixels, labels = np.zeros((count, 28, 28), np.uint8), (np.arange(count) % 10).astype(np.uint8)
            pixels[:, 0, 0] = 10 * number + labels
            put(f"{folder}/{part}-images-idx3-ubyte.gz", idx(pixels))
            put(f"{folder}/{part}-labels-idx1-ubyte.gz", idx(labels))
    for number, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        records = np.zeros((4, 3073), np.uint8)
        records[:, 0] = (np.arange(4) + number) % 10
        for channel in range(3):
            records[:, 1 + 1024 * channel] = 100 * channel + 10 * (name == "test_batch") + records[:, 0]
        put(f"cifar10/cifar-10-batches-bin/{name}.bin", records.tobytes())
    members = {"fine_label_names.txt": "\n".join(FINE) + "\n", "coarse_label_names.txt": "big\nsmall\n"}
    for number, (part, count) in enumerate((("train", 20), ("test", 10))):
        records = np.zeros((count, 3074), np.uint8)
        records[:, 1] = np.arange(count) % 10
        records[:, 0] = records[:, 1] % 2
        for channel in range(3):
            records[:, 2 + 1024 * channel] = 100 * channel + 10 * number + records[:, 1]
        members[f"{part}.bin"] = records.tobytes()
    put("cifar100/cifar-100-binary.tar.gz", tarred(members))
    for number, (part, count) in enumerate((("train", 20), ("test", 10))):
        digits = np.arange(count) % 10
        pixels = np.zeros((32, 32, 3, count), np.uint8)
        pixels[0, 0] = 100 * np.arange(3)[:, None] + 10 * number + digits
        put(f"svhn/{part}_32x32.mat", matlab(pixels, np.where(digits == 0, 10, digits)))


FINE = [f"kind {k}".replace(" ", "_") for k in range(10)]


def tarred(members):
    """A tar.gz of the folder cifar-100-binary."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in members.items():
            content = content if isinstance(content, bytes) else content.encode()
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def matlab(pixels, labels):
    """As the publisher's files: MATLAB 5, compressed, labels in a column of bytes."""
    raw = io.BytesIO()
    scipy.io.savemat(raw, {"X": pixels, "y": labels.astype(np.uint8)[:, None]}, do_compression=True)
    return raw.getvalue()


SCALES = {
    "mnist": ([0.1307], [0.3081]),
    "fashion_mnist": ([0.2860], [0.3530]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    "svhn": ([0.4377, 0.4438, 0.4728], [0.1980, 0.2010, 0.1970]),
}


@pytest.mark.parametrize("name", SCALES)
def test_images_keep_their_labels_parts_and_channels(images, name):
    parts = getattr(sets, name)(valid=3)
    mean, std = (torch.tensor(values) for values in SCALES[name])
    for part, number in zip(parts, (0, 0, 1), strict=True):
        corner = ((part.x[:, :, 0, 0] * std + mean) * 255).round().long()
        for channel in range(len(mean)):
            assert torch.equal(corner[:, channel], 100 * channel + 10 * number + part.y)
    digits = [str(k) for k in range(10)]
    known = {"mnist": digits, "svhn": digits, "fashion_mnist": CLOTHES, "cifar10": OBJECTS, "cifar100": FINE}
    assert list(parts.train.classes) == known[name]


def test_superclasses_are_groups(images):
    for part in sets.cifar100(valid=3):
        assert torch.equal(part.groups["superclass"], part.y % 2)
        assert part.group_names == {"superclass": ("big", "small")}


def test_house_numbers_keep_rows_and_columns_apart_and_may_have_more(put, images):
    """MATLAB has the image's number last and rows first; what the file says at [row, column] is at [row, column] here."""
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    put("svhn/extra_32x32.mat", matlab(pixels, np.array([10, 1, 2, 3])))
    few, more = sets.svhn(valid=0), sets.images.svhn(valid=0, extra=True)
    assert (len(few.train), len(more.train)) == (20, 24)
    rows = {tuple(x.flatten().tolist()): int(y) for x, y in zip(more.train.x, more.train.y, strict=True)}
    mean, std = (np.array(values).reshape(3, 1, 1) for values in SCALES["svhn"])
    for k, digit in enumerate((0, 1, 2, 3)):
        image = np.stack([pixels[:, :, channel, k] for channel in range(3)])
        expected = torch.from_numpy((image / 255 - mean) / std).float()
        match = [y for x, y in rows.items() if torch.allclose(torch.tensor(x), expected.flatten(), atol=1e-5)]
        assert match == [digit]


WRONG = {
    "svhn/train_32x32.mat": {
        "no MATLAB file": b"published bytes of another kind" * 10,
        "without labels": None,
        "of another size": (np.zeros((28, 28, 3, 2), np.uint8), np.ones(2)),
        "a label of 11": (np.zeros((32, 32, 3, 2), np.uint8), np.array([1, 11])),
        "a label of 0": (np.zeros((32, 32, 3, 2), np.uint8), np.array([0, 1])),
    },
    "cifar100/cifar-100-binary.tar.gz": {
        "no archive": b"published bytes",
        "without images": {"fine_label_names.txt": "a", "coarse_label_names.txt": "b"},
        "cut short": {"fine_label_names.txt": "a", "coarse_label_names.txt": "b", "train.bin": b"\0" * 3000},
        "a class without a name": {
            "fine_label_names.txt": "a", "coarse_label_names.txt": "b", "train.bin": b"\0\1" + b"\0" * 3072,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, table in WRONG.items() for what in table])
def test_a_file_of_another_form_is_refused_by_name(images, put, name, what):
    content = WRONG[name][what]
    if isinstance(content, tuple):
        content = matlab(*content)
    elif isinstance(content, dict):
        content = tarred(content)
    elif content is None:
        raw = io.BytesIO()
        scipy.io.savemat(raw, {"X": np.zeros((32, 32, 3, 2), np.uint8)})
        content = raw.getvalue()
    put(name, content)
    with pytest.raises(DataError, match=r"32x32.mat|cifar-100-binary"):
        getattr(sets, name.split("/")[0])(valid=0)


@pytest.mark.parametrize("name", SCALES)
def test_the_seed_chooses_who_is_held_out_and_nothing_else(images, name):
    one, again, other = (getattr(sets, name)(seed=seed, valid=5) for seed in (1, 1, 2))
    assert torch.equal(one.valid.y, again.valid.y)
    assert not torch.equal(one.valid.y, other.valid.y)
    assert torch.equal(one.test.x, other.test.x)
    assert torch.equal(sets.load(name, 2, 5).valid.x, other.valid.x)


def test_every_published_set_has_a_stand_in():
    made_up = {"two_patch", "signal_noise"}
    bundled = {"digits"}
    texts = {"sst2", "sick", "snli"}  # test_texts.py
    shown = {"adult", "german_credit", "compas", "california_housing", "wine_quality", *SCALES, *texts}
    assert set(sets.DATASETS) == made_up | bundled | shown
