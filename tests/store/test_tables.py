"""Tests of the schemas: what the writer refuses, and that values are stored unchanged."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.config.commands import COMMANDS
from opdkit.config.fields import fields_of
from opdkit.errors import OpdkitError
from opdkit.store.tables import (
    APPENDED,
    PRIMARY,
    REJECTED,
    SESSIONS,
    TABLES,
    TARGETS,
    TURNS,
    choose_parquet_options,
    to_arrow,
)

MESSAGE = {"role": "user", "content": "hi", "reasoning": None, "name": None, "tool_call_id": None, "tool_calls": []}
SESSION = {"session_id": "a:1", "source": "a", "line": 1, "format": "openai", "model": None, "messages": [MESSAGE],
           "tools": None, "metadata": None, "tree": None}  # fmt: skip
TURN = {"turn_id": "a:1:1", "session_id": "a:1", "message_index": 1, "next_count": 0, "next_role": None, "kind": "main",
        "trainable": False, "skip_reason": "empty", "finish_reason": None, "response_token_ids": None,
        "behavior_logprobs": None, "decision": None}  # fmt: skip


def test_every_column_says_what_it_means():
    def fields(parent):
        for field in parent:
            kind = field.type
            yield field
            inner = kind.value_type if pa.types.is_list(kind) else kind
            if pa.types.is_struct(inner):
                yield from fields(inner)

    for table in (*TABLES.values(), *APPENDED.values()):
        assert table.version >= 1
        for field in fields(table.schema):
            assert field.metadata[b"meaning"], f"{table.name}.{field.name}"


def test_an_optional_table_names_an_option_of_its_stage():
    optional = [table for table in TABLES.values() if table.option]
    assert optional
    for table in optional:
        assert table.option in {field.flag for field in fields_of(COMMANDS[table.stage].config)}
        assert table is not PRIMARY[table.stage]


@pytest.mark.parametrize(("change", "named"), [
    ({"surprise": 1}, "unknown columns \\['surprise'\\]"),
    ({"line": ...}, "missing columns \\['line'\\]"),
])  # fmt: skip
def test_unknown_and_missing_columns_are_refused(change, named):
    """pyarrow alone would silently drop a column that is not in the schema and fill a missing column with nulls."""
    changed = {k: v for k, v in (SESSION | change).items() if v is not ...}
    with pytest.raises(OpdkitError, match=named):
        to_arrow(SESSIONS, [SESSION, changed])


@pytest.mark.parametrize(("change", "where"), [
    ({"session_id": None}, "sessions.session_id"),
    ({"messages": None}, "sessions.messages"),
    ({"messages": [None]}, r"sessions.messages\[\]"),
    ({"messages": [MESSAGE | {"role": None}]}, r"sessions.messages\[\].role"),
    ({"messages": [MESSAGE | {"tool_calls": [{"id": "", "name": "f", "arguments": None}]}]}, "tool_calls.*arguments"),
])  # fmt: skip
def test_a_null_where_none_may_be_is_refused(change, where):
    """pyarrow alone would write nulls in a non-nullable column, and readers then disagree about the values."""
    with pytest.raises(OpdkitError, match=f"table {where}|{where}"):
        to_arrow(SESSIONS, [SESSION, SESSION | change])


def test_a_null_beside_a_null_list_is_no_null_inside_it():
    rows = [TURN, TURN | {"response_token_ids": [1, 2], "behavior_logprobs": [-0.5, -1.0]}, TURN]
    assert to_arrow(TURNS, rows).column("response_token_ids").to_pylist() == [None, [1, 2], None]


@pytest.mark.parametrize("change", [
    {"message_index": "one"}, {"message_index": 2**40}, {"trainable": "yes"}, {"turn_id": 5},
    {"response_token_ids": ["a"]}, {"response_token_ids": 7}, {"turn_id": "\ud800"},
])  # fmt: skip
def test_a_value_of_another_type_is_refused(change):
    with pytest.raises(OpdkitError, match="table turns"):
        to_arrow(TURNS, [TURN | change])


def test_no_rows_keep_the_schema():
    for table in TABLES.values():
        assert to_arrow(table, []).schema.equals(table.schema)


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.lists(st.tuples(TEXT, st.none() | TEXT, st.lists(TEXT, max_size=2)), max_size=4))
def test_messages_come_back_as_they_went_in(told):
    messages = []
    for text, content, names in told:
        calls = [{"id": "", "name": name, "arguments": name} for name in names]
        messages.append(MESSAGE | {"content": content, "reasoning": text, "tool_calls": calls})
    assert to_arrow(SESSIONS, [SESSION | {"messages": messages}]).to_pylist() == [SESSION | {"messages": messages}]


def test_null_is_not_zero_and_not_empty():
    row = {"turn_id": "t", "prompt_tokens": 1, "cut_messages": 0, "response_ids": [1], "response_mask": [True],
           "old_logprobs": [-1.0], "teacher_logprobs": None, "unhinted_logprobs": None, "behavior_logprobs": None,
           "written": None, "hint": None, "overlap": None, "support_ids": None, "support_old": None,
           "support_teacher": None, "reward": None}  # fmt: skip
    assert set(row) == set(TARGETS.schema.names)
    assert to_arrow(TARGETS, [row]).to_pylist() == [row]
    assert to_arrow(REJECTED, [dict.fromkeys(("source", "reason", "detail", "raw"), "") | {"line": 0}]).num_rows == 1


# -- supports -------------------------------------------------------------------------------------------------------

TARGET = {"turn_id": "t", "prompt_tokens": 1, "cut_messages": 0, "response_ids": [1, 2], "response_mask": [True] * 2,
          "old_logprobs": [-1.0, -2.0], "teacher_logprobs": None, "unhinted_logprobs": None, "behavior_logprobs": None,
          "written": 0, "hint": None, "overlap": None, "support_ids": None, "support_old": None,
          "support_teacher": None, "reward": None}  # fmt: skip


@given(st.lists(st.none() | st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=6))
def test_a_matrix_is_stored_as_its_rows(shapes):
    """Lists of lists and 2-D arrays of any size, mixed with nulls, give the same table."""
    numbers = iter(range(1000))
    lists = [shape and [[next(numbers) for _ in range(shape[1])] for _ in range(shape[0])] for shape in shapes]
    arrays = [shape and np.array(rows, np.int32).reshape(shape) for shape, rows in zip(shapes, lists, strict=True)]
    by_lists, by_arrays = (
        to_arrow(TARGETS, [TARGET | {"support_ids": value} for value in values]) for values in (lists, arrays)
    )
    by_arrays.validate(full=True)
    assert by_arrays.equals(by_lists)
    assert by_arrays.column("support_ids").to_pylist() == lists


@pytest.mark.parametrize("change", [
    {"support_ids": np.array([[1.5]])}, {"support_ids": np.array([["a"]])}, {"support_ids": np.array([1, 2])},
    {"old_logprobs": np.array([[1.0]])}, {"hint": np.array([[1]])},
])  # fmt: skip
def test_a_matrix_that_does_not_fit_is_refused(change):
    with pytest.raises(OpdkitError, match="table targets"):
        to_arrow(TARGETS, [TARGET | change])


def test_half_precision_moves_no_probability_by_more_than_2e_4():
    """Supports in float16 change probabilities by |exp(stored) - exp(exact)|, most at log-probs from -2 to -0.9."""
    exact = -np.concatenate([np.linspace(1e-7, 20, 400_001), np.geomspace(1e-9, 60_000, 10_001)])
    rows = to_arrow(TARGETS, [TARGET | {"support_old": exact.astype(np.float16).reshape(1, -1)}])
    stored = rows.column("support_old").combine_chunks().flatten().flatten().to_numpy().astype(np.float64)
    error = np.abs(np.exp(stored) - np.exp(exact))
    assert 1e-4 < error.max() < 1.9e-4
    assert -2 < exact[error.argmax()] < -0.9
    assert (np.abs(stored - exact) <= np.maximum(np.abs(exact) * 2**-11, 2.0**-25)).all()


def test_messages_that_branches_share_are_stored_once(tmp_path):
    """The dictionary of a column holds each text once, far beyond pyarrow's own limit of 1 MB."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz012345", dtype=np.uint8)
    texts = [letters[np.random.default_rng(n).integers(0, 32, 100_000)].tobytes().decode() for n in range(40)]
    shared = [MESSAGE | {"content": text} for text in texts]

    def stored(branches: int) -> int:
        rows = [SESSION | {"session_id": f"a:1#branch-{n}", "messages": [*shared, MESSAGE | {"content": f"{n}"}]}
                for n in range(branches)]  # fmt: skip
        path = tmp_path / f"{branches}.parquet"
        pq.write_table(to_arrow(SESSIONS, rows), path, **choose_parquet_options(SESSIONS.schema))
        assert pq.read_table(path).to_pylist()[-1] == rows[-1]
        return path.stat().st_size

    assert stored(1) > 2_000_000
    assert stored(10) < 1.01 * stored(1)
