"""The number of reads in flight: how it finds its way on any store, in simulated time."""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapiter.workers.supervisor.inflight import InFlight, Reading
from tests.workers.simulated_store import Fixed, Simulation, Store

LEAST, MOST = 4, 256
#: Latency in seconds, files per second, requests served at a time; and about the reads it takes.
STORES = [
    (0.001, 5000.0, 1 << 30, 5),  # bandwidth is the limit
    (0.010, 5000.0, 1 << 30, 50),
    (0.010, math.inf, 10, 10),  # libfuse serves ten at a time, unless told otherwise
    (0.010, math.inf, 68, 68),
    (0.050, 1000.0, 1 << 30, 50),
    (0.050, math.inf, 1 << 30, 256),  # nothing but latency is
]
STARTS = [LEAST, 64, MOST]


def make(start: int = 64, least: int = LEAST, most: int = MOST) -> InFlight:
    return InFlight(start, least, most)


@functools.cache
def best_rate(store: tuple[float, float, int], jitter: float = 0.0) -> float:
    rates = []
    for n_reads in (LEAST, 8, 16, 32, 64, 128, MOST):
        simulation = Simulation(Store(*store, jitter=jitter), Fixed(n_reads))
        simulation.run(2.0)
        rates.append(simulation.rate(1.0))
    return max(rates)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("store", STORES)
def test_from_any_start_it_comes_near_the_best_throughput_within_three_seconds(store, start):
    simulation = Simulation(Store(*store[:3]), make(start))
    simulation.run(3.0)
    assert simulation.rate(1.0) >= 0.8 * best_rate(store[:3])  # while it still tries others
    simulation.run(3.0)
    assert simulation.rate(3.0) >= 0.9 * best_rate(store[:3])


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("store", [store for store in STORES if store[3] < MOST])
def test_it_does_not_load_a_store_with_reads_that_bring_nothing(store, start):
    simulation = Simulation(Store(*store[:3]), make(start))
    simulation.run(12.0)
    numbers = simulation.numbers(6.0)
    assert sum(numbers) / len(numbers) <= 2 * store[3] + LEAST


@pytest.mark.parametrize("store", [STORES[0], STORES[1], STORES[3], STORES[5]])
def test_latencies_that_vary_do_not_mislead_it(store):
    simulation = Simulation(Store(*store[:3], jitter=1.0), make())
    simulation.run(12.0)
    assert simulation.rate(6.0) >= 0.9 * best_rate(store[:3], jitter=1.0)


@given(
    start=st.integers(1, 1000),
    bounds=st.lists(st.integers(1, 300), min_size=2, max_size=2),
    latency_seconds=st.floats(0.0005, 0.2),
    files_per_second=st.sampled_from([300.0, 3000.0, math.inf]),
    n_served=st.sampled_from([1, 10, 1 << 30]),
)
def test_it_is_never_beyond_its_bounds(start, bounds, latency_seconds, files_per_second, n_served):
    least, most = sorted(bounds)
    store = Store(latency_seconds, files_per_second, n_served)
    simulation = Simulation(store, make(start, least, most))
    for is_waiting, demand in [(True, math.inf), (False, 200.0), (True, 1000.0)]:
        simulation.is_waiting, simulation.demand_per_second = is_waiting, demand
        simulation.run(0.6)
    assert {min(max(n, least), most) - n for _, n, _ in simulation.history} == {0}


def test_it_comes_down_when_others_load_the_store_and_up_again_when_they_are_gone():
    store = Store(0.010, math.inf, n_served=100)
    simulation = Simulation(store, make())
    simulation.run(5.0)
    assert min(simulation.numbers(1.0)) >= 64
    store.n_served = 10  # each read takes ten times as long from now on
    simulation.run(8.0)
    assert max(simulation.numbers(2.0)) <= 40
    assert simulation.rate(2.0) >= 0.9 * 1000
    store.n_served = 100
    simulation.run(20.0)
    assert simulation.rate(2.0) >= 0.9 * 10_000


def test_a_latency_that_rises_by_itself_brings_more_reads_not_fewer():
    store = Store(0.005, files_per_second=4000.0)
    simulation = Simulation(store, make())
    simulation.run(10.0)
    assert max(simulation.numbers(2.0)) <= 64
    store.latency_seconds = 0.050
    simulation.run(10.0)
    assert simulation.rate(2.0) >= 0.9 * 4000.0


def test_it_does_not_grow_while_nobody_waits():
    simulation = Simulation(Store(0.050), make())
    simulation.is_waiting = False
    simulation.run(10.0)
    assert max(n_reads for _, n_reads, _ in simulation.history) == 64
    simulation.is_waiting = True
    simulation.run(2.0)
    assert simulation.history[-1].n_reads == MOST


def test_with_a_full_window_it_shrinks_to_twice_of_what_is_in_use_and_then_grows_at_once():
    simulation = Simulation(Store(0.010), make())
    simulation.demand_per_second = 1000.0  # ten in use
    simulation.is_waiting = False
    simulation.run(5.0)
    assert 15 <= simulation.history[-1].n_reads <= 25
    simulation.demand_per_second = math.inf
    simulation.is_waiting = True
    simulation.run(2.0)
    assert simulation.history[-1].n_reads >= 128


def test_with_too_little_to_read_it_stays_while_the_trainer_waits_for_something_else():
    simulation = Simulation(Store(0.010), make())
    simulation.demand_per_second = 1000.0
    simulation.run(5.0)
    assert {n_reads for _, n_reads, _ in simulation.history} == {64}


def test_a_step_that_nothing_follows_is_taken_back():
    in_flight = make(64)
    simulation = Simulation(Store(0.010), in_flight)
    while in_flight.n_reads == 64:
        simulation.run(0.02)
    assert in_flight.n_reads == 128
    simulation.store.latency_seconds = math.inf  # the store stalls
    simulation.run(12.0)
    assert in_flight.n_reads == 64


def test_one_reading_decides_nothing():
    assert make(64).update(Reading(0.0, 10**6, 10**12, 1e3, 0.0, 10.0)) == 64
