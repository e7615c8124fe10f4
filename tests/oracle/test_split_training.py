"""Split networks train as the whole network would: against plain twins, and between ways of protection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from colonnade.completion.layout import Layout
from colonnade.completion.split import session
from colonnade.completion.split.networks import apply, leaky, noisy_sum
from colonnade.completion.split.regressor import Regressor
from colonnade.completion.split.session import features
from colonnade.completion.split.training import GAMMA, drawing, sensitivity, words_of
from colonnade.errors import NotEstimable
from colonnade.federation.coordinator import Federation
from colonnade.papers.fedpsg import gain
from support.split import ALLOWED, curved_pair, regression_of, run_training


def test_split_regression_is_the_training_of_the_whole_network(tmp_path: Path) -> None:
    """Losses of 40 rounds with one iteration each, against one network that sees both tables (optax, jax.grad)."""
    blocks, columns = curved_pair(300, missing=0.2)
    training = regression_of(iterations=40, local=1, every=100, learning_rate=0.02)
    with Federation.local(blocks, key="id", columns=columns, seed=4, allow=ALLOWED, home=tmp_path / "h") as opened:
        history, _ = run_training(opened, training, first={"left": 11, "right": 22})
        parties: Any = opened.transport
        at = {name: parties[name].rows for name in blocks}
    n = opened.facts.n
    whole: dict[str, np.ndarray[Any, Any]] = {}
    for party, frame in blocks.items():
        layout = Layout(columns.select([name for name in frame.columns if name != "id"]))
        matrix = np.full((n, layout.width), np.nan, dtype=np.float32)
        matrix[at[party]] = layout.encode({name: columns[name].encode(frame[name]) for name in layout.columns})
        whole[party] = matrix
    x = jnp.asarray(features(whole["left"], Layout(columns.select(["u", "v", "kind"])), private=False))
    present = {party: ~np.isnan(one[:, 0]) for party, one in whole.items()}
    rows = training.training_rows(present)
    y = jnp.asarray(np.nan_to_num(whole["right"]))
    here = jnp.asarray(present["left"])

    left = Regressor(x.shape[1], 0, 8, 4, decay=training.decay)
    right = Regressor(0, y.shape[1], 8, 4, decay=training.decay)
    means = np.asarray(y[rows].mean(axis=0))
    weights = (left.init(words_of(11), 1e-3, 40).bottom, right.init(words_of(22), 1e-3, 40, means).top)
    optimiser = optax.adamw(optax.cosine_decay_schedule(training.learning_rate, 40), weight_decay=training.decay)
    state = optimiser.init(weights)

    @jax.jit
    def step(weights: Any, state: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = jnp.where(here[batch][:, None], apply(weights[0], x[batch]), 0.0)
            return jnp.sum((apply(weights[1], leaky(hidden)) - y[batch]) ** 2) / batch.shape[0]

        value, slope = jax.value_and_grad(loss)(weights)
        change, state = optimiser.update(slope, state, weights)
        return optax.apply_updates(weights, change), state, value

    twin = []
    for number in range(40):
        weights, state, value = step(weights, state, jnp.asarray(training.batches(rows, number)[0]))
        twin.append(float(value))
    assert np.allclose([one[0] for one in history.losses], twin, rtol=2e-4)
    assert np.mean(twin[-5:]) < 0.9 * np.mean(twin[:5])


def test_ckks_and_pads_train_alike_for_fifty_steps_and_a_simulation_repeats() -> None:
    blocks, columns = curved_pair(300)
    found = {}
    for run in ("pads", "ckks", "pads again"):
        training = regression_of(masking=run.split()[0], iterations=50, local=1, every=10)
        with Federation.local(blocks, key="id", columns=columns, seed=4, allow=ALLOWED) as opened:
            found[run], _ = run_training(opened, training, first={"left": 1, "right": 2})
    assert found["pads"].losses == found["pads again"].losses
    pads, ckks = (np.array([one[0] for one in found[way].losses]) for way in ("pads", "ckks"))
    assert len(pads) == 50
    assert np.allclose(pads, ckks, rtol=1e-5)
    assert found["pads"].best["right"] == pytest.approx(found["ckks"].best["right"], rel=1e-5)


def test_a_party_that_was_restarted_goes_on_where_the_last_round_ended() -> None:
    """What is in memory is dropped after every look; the losses are those of an undisturbed run."""
    blocks, columns = curved_pair(300)
    losses = []
    for forgetful in (False, True):
        with Federation.local(blocks, key="id", columns=columns, seed=4, allow=ALLOWED) as opened:
            if forgetful:
                inner = opened.transport.exchange

                def exchange(party: str, data: bytes, *, timeout: float, inner: Any = inner) -> bytes:
                    session._alive.clear()
                    found: bytes = inner(party, data, timeout=timeout)
                    return found

                opened.transport.exchange = exchange  # type: ignore[method-assign]
            training = regression_of(iterations=8, local=1, every=3)
            history, _ = run_training(opened, training, first={"left": 1, "right": 2})
            losses.append(history.losses)
    assert losses[0] == losses[1]


def test_training_that_runs_away_is_an_error() -> None:
    blocks, columns = curved_pair(300)
    runaway = regression_of(iterations=100, learning_rate=80.0, patience=100)
    with (
        Federation.local(blocks, key="id", columns=columns, allow=ALLOWED) as opened,
        pytest.raises(NotEstimable, match="diverged"),
    ):
        run_training(opened, runaway)


def test_training_stops_when_the_hidden_records_see_nothing_better() -> None:
    blocks, columns = curved_pair(300)
    with Federation.local(blocks, key="id", columns=columns, seed=4, allow=ALLOWED) as opened:
        training = regression_of(iterations=400, every=1, patience=3, learning_rate=0.05)
        history, _ = run_training(opened, training, first={"left": 1, "right": 2})
    assert history.rounds < training.rounds
    assert "no better" in history.stopped


def test_private_training_takes_its_last_weights_whatever_the_hidden_records_see() -> None:
    """Where to stop, and which weights to keep, would be a release about the hidden records that no noise covers."""
    blocks, columns = curved_pair(200)
    quick = {"every": 1, "patience": 1, "learning_rate": 1e-9, "local": 2, "iterations": 12, "validation": 0.2}
    private_one = regression_of(**quick, mu=2**20, clip=1.0, gamma=GAMMA, epochs=12)
    for training, rounds in ((regression_of(**quick), 2), (private_one, 6)):
        with Federation.local(blocks, key="id", columns=columns, seed=1, allow=ALLOWED) as opened:
            history, _ = run_training(opened, training)
        assert history.rounds == rounds
        assert (history.stopped == "all rounds were made") == bool(training.mu)


def plain_gain(
    x: np.ndarray[Any, Any],
    mask: np.ndarray[Any, Any],
    label: np.ndarray[Any, Any],
    batches: np.ndarray[Any, Any],
    model: gain.Gain,
    common: Any,
    drawn: gain.Drawn,
) -> list[list[float]]:
    """GAIN, VGAIN or CGAIN written down once more, of one table whose last three entries are one category, with optax:
    losses of the discriminator and the generator."""
    state = model.init(words_of(7))
    weights, judges = state.generator, (state.bottom, state.top)
    optimiser = optax.adam(model.learning_rate)
    state_g, state_d = optimiser.init(weights), optimiser.init(judges)
    width = x.shape[1]

    def relu_net(layers: Any, values: Any) -> Any:
        for at, (w, b) in enumerate(layers):
            values = values @ w + b
            values = jnp.maximum(values, 0) if at < len(layers) - 1 else values
        return values

    def forward(weights: Any, judges: Any, values: Any, seen: Any, told: Any, bits: Any, noise: Any, z: Any) -> Any:
        hinted = bits[:, :width] / 65536 < model.hint
        filled = jnp.concatenate(
            [jnp.where(seen, values, 0.01 * (noise + 0.5) / 256), seen.astype(jnp.float32), told], axis=1
        )
        divergence = 0.0
        if model.kind == "vgain":
            mean, log_variance = jnp.split(relu_net(weights["encoder"], filled), 2, axis=1)
            divergence = jnp.mean(jnp.sum(mean**2 + jnp.exp(log_variance) - 1 - log_variance, axis=1)) / 2
            raw = relu_net(weights["decoder"], jnp.concatenate([mean + jnp.exp(log_variance / 2) * z, told], axis=1))
        else:
            raw = relu_net(weights["layers"], filled)
        made = jnp.concatenate([1 / (1 + jnp.exp(-raw[:, :-3])), jax.nn.softmax(raw[:, -3:])], axis=1)
        hint = jnp.where(hinted, seen.astype(jnp.float32), 0.5)
        known = [told] if model.kind == "cgain" else []
        out = jnp.concatenate([jnp.where(seen, values, made), hint, *known], axis=1)
        for layers in judges:
            (w1, b1), (w2, b2) = layers
            out = jax.nn.leaky_relu(out @ w1 + b1, 0.2) @ w2 + b2
            out = jax.nn.leaky_relu(out, 0.2) if layers is judges[0] else out
        return made, out, hinted, divergence

    @jax.jit
    def step(weights: Any, judges: Any, state_g: Any, state_d: Any, batch: Any, bits: Any, noise: Any, z: Any) -> Any:
        values, seen, told = jnp.asarray(x)[batch], jnp.asarray(mask)[batch], jnp.asarray(label)[batch]

        def judge(judges: Any) -> Any:
            _, out, hinted, _ = forward(weights, judges, values, seen, told, bits, noise, z)
            p = jax.nn.sigmoid(out)
            cross = -jnp.where(seen, jnp.log(p), jnp.log(1 - p))
            return jnp.sum(cross * ~hinted) / jnp.sum(~hinted)

        def fool(weights: Any) -> Any:
            made, out, _, divergence = forward(weights, judges, values, seen, told, bits, noise, z)
            lost = -jnp.sum(~seen * jnp.log(jax.nn.sigmoid(out))) / seen.size
            numbers = jnp.sum(seen[:, :-3] * (made - values)[:, :-3] ** 2)
            categories = -jnp.sum(seen[:, -3:] * values[:, -3:] * jnp.log(made[:, -3:])) / 4
            return lost + model.alpha * ((numbers + categories) / jnp.sum(seen) + model.kl * divergence)

        d, slope_d = jax.value_and_grad(judge)(judges)
        g, slope_g = jax.value_and_grad(fool)(weights)
        change_d, state_d = optimiser.update(slope_d, state_d)
        change_g, state_g = optimiser.update(slope_g, state_g)
        return optax.apply_updates(weights, change_g), optax.apply_updates(judges, change_d), state_g, state_d, d, g

    losses = []
    for number, batch in enumerate(batches):
        weights, judges, state_g, state_d, d, g = step(
            weights, judges, state_g, state_d, batch, common[number], drawn.noise[number], drawn.normal[number]
        )
        losses.append([float(d), float(g)])
    return losses


ALONE = gain.Gain(
    kind="gain", widths=(6,), place=0, active=True, groups=((3, 6),), context=0, hidden=8, cut=6, learning_rate=1e-2
)
"""Of one party with three numbers and a category of three."""


@pytest.mark.parametrize("kind", ["gain", "vgain", "cgain"])
def test_a_vertical_gan_with_all_columns_at_one_party_is_the_plain_one(kind: Any) -> None:
    """The same seeds give the same losses, which fall."""
    rng = np.random.default_rng(0)
    u = rng.random(200)
    x = np.column_stack([u, u**2, 1 - u, np.eye(3)[(3 * u).astype(int)]]).astype(np.float32)
    mask = rng.random((200, 4))[:, [0, 1, 2, 3, 3, 3]] > 0.2  # a category is there as a whole or not at all
    x = np.where(mask, x, 0).astype(np.float32)
    label = (np.eye(2)[(u > 0.5).astype(int)] if kind == "cgain" else np.zeros((200, 0))).astype(np.float32)
    model = replace(ALONE, kind=kind, context=label.shape[1], dropout=0.0)
    data = gain.Data(jnp.asarray(x), jnp.asarray(mask), jnp.asarray(label), jnp.asarray(mask))
    batches = rng.integers(0, 200, (40, 32))
    common, own = model.common(drawing(words_of(5)), 40, 32), model.draws(drawing(words_of(7)), 40, 32)
    _, _, losses = model.lead(model.init(words_of(7)), data, jnp.asarray(batches), jnp.zeros((40, 32, 6)), common, own)
    assert np.allclose(np.asarray(losses), plain_gain(x, mask, label, batches, model, common, own), rtol=2e-3)
    assert np.mean(losses[-5:, 1]) < 0.95 * np.mean(losses[:5, 1])


@pytest.mark.parametrize("kind", ["gain", "vgain", "cgain"])
def test_a_generator_that_is_told_what_to_expect_begins_there(kind: Any) -> None:
    """Before any training its output is the expected values, of numbers and of categories; without them it is not."""
    rng = np.random.default_rng(2)
    told = np.concatenate([rng.uniform(0.05, 0.95, (50, 3)), rng.dirichlet([2, 2, 2], 50)], axis=1).astype(np.float32)
    context = np.concatenate([told, np.eye(2)[rng.integers(0, 2, 50)]], axis=1).astype(np.float32)
    model = replace(ALONE, kind=kind, context=8, predicted=True)
    nothing = jnp.zeros((50, 6))
    data = gain.Data(nothing, nothing.astype(bool), jnp.asarray(context), nothing.astype(bool))

    def begun(model: gain.Gain) -> Any:
        return model.impute(model.init(words_of(3)), data, jnp.arange(50), drawing(words_of(3)))

    assert np.max(np.abs(begun(model) - told)) < 0.1
    assert np.max(np.abs(begun(replace(model, predicted=False)) - told)) > 0.3


def test_the_sensitivity_of_private_sums_holds() -> None:
    """The rounded sum of clipped gradients moves by at most the stated length when one record becomes anything else,
    and by more when the clipping is left out (the planted bug)."""
    rng = np.random.default_rng(1)
    rows = jnp.asarray(rng.normal(size=(16, 40)) * 10.0)
    other = rows.at[3].set(0.0)
    like = jnp.zeros(40)
    quiet = jnp.zeros(40, dtype=jnp.int32)

    def total(data: Any, clip: float) -> Any:
        return np.asarray(noisy_sum(lambda at: (data[at],), 16, like, clip, GAMMA, quiet)) * 16

    unit = 1.0 / GAMMA
    moved = np.linalg.norm(total(rows, 1.0) - total(other, 1.0)) / unit
    training = regression_of(mu=1, gamma=GAMMA, clip=1.0, epochs=1)
    assert moved <= sensitivity(training, 40)
    unclipped = np.linalg.norm(total(rows, 1e6) - total(other, 1e6)) / unit
    assert unclipped > sensitivity(training, 40)


def test_noise_is_added_in_integers_modulo_2_32() -> None:
    """In float32 the largest noise plus one would be rounded before it is added, and no longer hide the sum."""
    one = jnp.ones((1, 3)) / 3**0.5
    most = jnp.full(3, 2**31 - 1, dtype=jnp.int32)
    found = np.asarray(noisy_sum(lambda at: (one[at],), 1, jnp.zeros(3), 1.0, GAMMA, most))
    expected = (np.rint(np.float32(GAMMA / 3**0.5)) - 2**31 - 1) / GAMMA
    assert np.allclose(found, expected, rtol=1e-6)
