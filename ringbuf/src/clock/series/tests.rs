//! A machine whose clocks are slewed, set and read with interruptions, and what must hold for conversions on it.

use std::cell::RefCell;

use proptest::prelude::*;

use super::*;

const TICKS_A_US: u64 = 2300;
const SLACK_NS: i64 = 1_000;

/// Clocks that advance with each reading, and as a script says.
struct Simulated(RefCell<State>);

struct State {
    true_ns: u64,
    /// When the counter began.
    counting_since_ns: u64,
    monotonic_start_ns: i64,
    monotonic_start_true_ns: u64,
    /// How much faster CLOCK_MONOTONIC runs than the counter, in parts per million.
    slew_ppm: i64,
    offset_ns: i64,
    /// State of a small generator of pauses.
    pauses: u64,
    preempted_in: u64,
}

impl Simulated {
    fn new(seed: u64) -> Simulated {
        Simulated(RefCell::new(State {
            true_ns: 5_000_000_000,
            counting_since_ns: 0,
            monotonic_start_ns: 7_000_000_000,
            monotonic_start_true_ns: 5_000_000_000,
            slew_ppm: 0,
            offset_ns: 1_700_000_000_000_000_000,
            pauses: seed | 1,
            preempted_in: 200,
        }))
    }

    fn pass(&self, ns: u64) {
        self.0.borrow_mut().true_ns += ns;
    }

    fn slew(&self, ppm: i64) {
        let mut state = self.0.borrow_mut();
        (state.monotonic_start_ns, state.monotonic_start_true_ns) = (state.monotonic(), state.true_ns);
        state.slew_ppm = ppm;
    }

    fn step(&self, ns: i64) {
        self.0.borrow_mut().offset_ns += ns;
    }

    /// Suspends the machine to memory or disk, from which most come back with a counter that begins again.
    fn suspend(&self, ns: u64) {
        let mut state = self.0.borrow_mut();
        let stood_still = state.monotonic();
        state.true_ns += ns;
        state.counting_since_ns = state.true_ns;
        (state.monotonic_start_ns, state.monotonic_start_true_ns) = (stood_still, state.true_ns);
        state.offset_ns += ns as i64;
        state.true_ns += 1_000_000_000;
    }

    /// A record between two readings of CLOCK_REALTIME.
    fn record(&self) -> (i64, u64, i64) {
        (self.realtime_ns(), self.tsc(), self.realtime_ns())
    }

    fn anchor(&self) -> Anchor {
        Anchor { raw: self.tsc(), monotonic_ns: self.monotonic_ns(), realtime_ns: self.realtime_ns() }
    }
}

impl State {
    fn monotonic(&self) -> i64 {
        let passed = (self.true_ns - self.monotonic_start_true_ns) as i128;
        self.monotonic_start_ns + (passed + passed * i128::from(self.slew_ppm) / 1_000_000) as i64
    }

    /// A reading takes 15 to 30 ns, and now and then up to 8 ms because something else ran.
    fn read(&mut self) {
        self.pauses =
            self.pauses.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = self.pauses >> 40;
        self.true_ns += 15 + drawn % 16;
        if drawn.is_multiple_of(self.preempted_in) {
            self.true_ns += drawn % 8_000_000;
        }
    }
}

impl Clocks for Simulated {
    fn tsc(&self) -> u64 {
        let mut state = self.0.borrow_mut();
        state.read();
        (state.true_ns - state.counting_since_ns) * TICKS_A_US / 1000
    }

    fn monotonic_ns(&self) -> i64 {
        let mut state = self.0.borrow_mut();
        state.read();
        state.monotonic()
    }

    fn realtime_ns(&self) -> i64 {
        let mut state = self.0.borrow_mut();
        state.read();
        state.monotonic() + state.offset_ns
    }
}

/// What happens on the machine between two rounds of the consumer.
#[derive(Clone, Debug)]
enum Event {
    Records(u8),
    Pause(u64),
    Slew(i64),
    Step(i64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => any::<u8>().prop_map(Event::Records),
        3 => (0_u64..4_000_000).prop_map(Event::Pause),
        1 => (0_u64..300_000_000).prop_map(Event::Pause),
        1 => (-500_i64..=500).prop_map(Event::Slew),
        1 => prop_oneof![-4_000_000_000_i64..-50_000, 50_000_i64..4_000_000_000].prop_map(Event::Step),
    ]
}

/// Records that were drained in one round, with what is known of each.
type Batch = Vec<(i64, u64, i64)>;

fn run(machine: &Simulated, event: &Event, batch: &mut Batch) {
    match event {
        Event::Records(count) => batch.extend((0..*count).map(|_| machine.record())),
        Event::Pause(ns) => machine.pass(*ns),
        Event::Slew(ppm) => machine.slew(*ppm),
        Event::Step(ns) => machine.step(*ns),
    }
}

proptest! {
    /// Whatever the clocks do, except for being set: no ring runs backwards, and no time lies in the future.
    #[test]
    fn times_of_a_ring_never_run_backwards(
        seed in any::<u64>(),
        rounds in prop::collection::vec(prop::collection::vec(event(), 0..6), 1..60),
    ) {
        let machine = Simulated::new(seed);
        let program = machine.anchor();
        let mut early = Batch::new();
        run(&machine, &Event::Records(20), &mut early);
        machine.pass(1_000_000_000);
        let mut series = ClockSeries::begun(&machine, true);
        let (mut ring, mut last) = (RingTime::default(), i64::MIN);
        for events in &rounds {
            let mut batch = std::mem::take(&mut early);
            for event in events.iter().filter(|event| !matches!(event, Event::Step(_))) {
                run(&machine, event, &mut batch);
            }
            series.tick_by(&machine);
            for (_, raw, _) in batch {
                let converted = series.to_realtime_ns(ClockKind::Tsc, &program, raw, &mut ring);
                prop_assert!(converted >= last);
                last = converted;
            }
            prop_assert!(last <= machine.realtime_ns());
        }
    }

    /// A record's time lies within its brackets, give or take what the change of speed between two rounds can explain.
    #[test]
    fn a_records_time_lies_between_the_clock_readings_around_it(
        seed in any::<u64>(),
        rounds in prop::collection::vec(
            (any::<u8>(), 0_u64..4_000_000, prop::option::weighted(0.1, -500_i64..=500)), 1..200),
    ) {
        let machine = Simulated::new(seed);
        let program = machine.anchor();
        let (mut ring, mut last_tick) = (RingTime::default(), machine.monotonic_ns());
        let mut series = ClockSeries::begun(&machine, true);
        for (count, pause, slew) in rounds {
            let mut batch = Batch::new();
            run(&machine, &Event::Records(count), &mut batch);
            slew.inspect(|ppm| machine.slew(*ppm));
            machine.pass(pause);
            let this_tick = machine.monotonic_ns();
            series.tick_by(&machine);
            let took = machine.monotonic_ns() - last_tick;
            last_tick = this_tick;
            // Two lines whose slopes differ by at most 1000 ppm are apart by at most a quarter of that.
            let slewed = if slew.is_some() { took / 4_000 } else { 0 };
            for (before, raw, after) in batch {
                let converted = series.to_realtime_ns(ClockKind::Tsc, &program, raw, &mut ring);
                let (least, most) = (before - SLACK_NS - slewed, after + SLACK_NS + slewed);
                prop_assert!((least..=most).contains(&converted), "{} {converted} {}", before, after);
            }
        }
    }

    /// A step of the clock is not smeared: every record has the time of the clock either before the step or after it.
    #[test]
    fn a_step_of_the_clock_is_not_smeared(
        seed in any::<u64>(),
        step in prop_oneof![-4_000_000_000_i64..-50_000, 50_000_i64..4_000_000_000],
        (records_before, records_after) in (1_u8.., 1_u8..),
    ) {
        let machine = Simulated::new(seed);
        let program = machine.anchor();
        let mut series = ClockSeries::begun(&machine, true);
        let mut ring = RingTime::default();
        let mut batch = Batch::new();
        run(&machine, &Event::Records(records_before), &mut batch);
        machine.step(step);
        run(&machine, &Event::Records(records_after), &mut batch);
        series.tick_by(&machine);
        let known = batch.len();
        run(&machine, &Event::Records(100), &mut batch);
        series.tick_by(&machine);
        for (index, (before, raw, after)) in batch.into_iter().enumerate() {
            let converted = series.to_realtime_ns(ClockKind::Tsc, &program, raw, &mut ring);
            let is_within = |moved: i64| (before + moved - SLACK_NS..=after + moved + SLACK_NS).contains(&converted);
            let stale = index >= usize::from(records_before) && index < known;
            prop_assert!(is_within(if stale { -step } else { 0 }), "{index}: {before} {converted} {after}");
        }
    }

    /// Whatever a program claims, its times lie between the boot and now.
    #[test]
    fn times_of_a_lying_program_lie_between_boot_and_now(
        seed in any::<u64>(),
        program in (any::<u64>(), any::<i64>(), any::<i64>())
            .prop_map(|(raw, monotonic_ns, realtime_ns)| Anchor { raw, monotonic_ns, realtime_ns }),
        raws in prop::collection::vec(any::<u64>(), 1..20),
        is_tsc in any::<bool>(),
    ) {
        let machine = Simulated::new(seed);
        let offset = machine.0.borrow().offset_ns;
        let series = ClockSeries::begun(&machine, is_tsc);
        for kind in [ClockKind::Tsc, ClockKind::Monotonic] {
            let mut ring = RingTime::default();
            for raw in raws.iter().copied().chain([0, 1, u64::MAX]) {
                let converted = series.to_realtime_ns(kind, &program, raw, &mut ring);
                prop_assert!((offset - SLACK_NS..=machine.realtime_ns() + SLACK_NS).contains(&converted));
            }
        }
    }
}

#[test]
fn records_older_than_the_consumer_use_the_programs_anchor() {
    let machine = Simulated::new(1);
    let program = machine.anchor();
    let mut batch = Batch::new();
    for _ in 0..100 {
        run(&machine, &Event::Records(1), &mut batch);
        machine.pass(36_000_000_000);
    }
    let series = ClockSeries::begun(&machine, true);
    let mut ring = RingTime::default();
    for (before, raw, after) in batch {
        let converted = series.to_realtime_ns(ClockKind::Tsc, &program, raw, &mut ring);
        assert!((before - SLACK_NS..=after + SLACK_NS).contains(&converted));
    }
}

#[test]
fn setting_the_clock_after_a_program_began_distorts_no_times() {
    let machine = Simulated::new(1);
    let program = machine.anchor();
    machine.pass(1_000_000_000);
    machine.step(1_000_000_000_000_000);
    let mut batch = Batch::new();
    run(&machine, &Event::Records(1), &mut batch);
    machine.pass(1_000_000_000);
    let series = ClockSeries::begun(&machine, true);
    let converted = series.to_realtime_ns(ClockKind::Tsc, &program, batch[0].1, &mut RingTime::default());
    assert!((batch[0].0 - SLACK_NS..=batch[0].2 + SLACK_NS).contains(&converted));
}

proptest! {
    /// Of records that lie between two looks with a suspension between them, nothing more is known than that they do.
    #[test]
    fn a_counter_that_restarts_after_a_suspension_is_followed(
        seed in any::<u64>(),
        suspensions in prop::collection::vec(
            (2_000_000_000_u64..1_000_000_000_000, 1_u8.., 1_u8.., 1_u8.., 1_u8..), 1..5),
    ) {
        let machine = Simulated::new(seed);
        machine.pass(100_000_000_000);
        let program = machine.anchor();
        let mut series = ClockSeries::begun(&machine, true);
        let (mut ring, mut last) = (RingTime::default(), i64::MIN);
        for (ns, seen_before, before, after, seen_after) in suspensions {
            machine.pass(100_000_000_000 + ns);
            series.tick_by(&machine);
            let mut batch = Batch::new();
            run(&machine, &Event::Records(seen_before), &mut batch);
            series.tick_by(&machine);
            let known_before = batch.len();
            let looked = machine.realtime_ns();
            run(&machine, &Event::Records(before), &mut batch);
            let asleep = machine.realtime_ns();
            machine.suspend(ns);
            let awake = machine.realtime_ns();
            run(&machine, &Event::Records(after), &mut batch);
            series.tick_by(&machine);
            let unknown_after = batch.len();
            run(&machine, &Event::Records(seen_after), &mut batch);
            series.tick_by(&machine);
            for (index, (least, raw, most)) in batch.into_iter().enumerate() {
                let converted = series.to_realtime_ns(ClockKind::Tsc, &program, raw, &mut ring);
                let (least, most) = match index {
                    _ if index < known_before => (least, most),
                    _ if index < known_before + usize::from(before) => (looked - 1_000_000_000, asleep),
                    _ if index < unknown_after => (looked - 1_000_000_000, awake + 2_000_000_000),
                    _ => (least, most),
                };
                prop_assert!((least - SLACK_NS..=most + SLACK_NS).contains(&converted), "{index}: {least} {converted} {most}");
                prop_assert!(converted >= last);
                last = converted;
            }
            // As from a CPU whose counter is a little ahead.
            let raw = series.knots.newest().map_or(0, |knot| knot.tsc + TICKS_A_US);
            let converted = series.to_realtime_ns(ClockKind::Tsc, &program, raw, &mut RingTime::default());
            prop_assert!(converted >= last && converted <= machine.realtime_ns());
        }
    }
}

#[test]
fn memory_is_bounded_and_old_readings_still_convert() {
    let machine = Simulated::new(1);
    machine.0.borrow_mut().preempted_in = u64::MAX;
    let program = machine.anchor();
    let mut series = ClockSeries::begun(&machine, true);
    let (mut batch, mut ring) = (Batch::new(), RingTime::default());
    for round in 0..700_000_u32 {
        machine.pass(1_000_000);
        series.tick_by(&machine);
        if round.is_multiple_of(1_000) {
            run(&machine, &Event::Records(1), &mut batch);
        }
    }
    assert!(series.knots.recent.len() <= MOST_RECENT && series.knots.older.len() <= MOST_OLDER);
    series.tick_by(&machine);
    for (before, raw, after) in batch {
        let converted = series.to_realtime_ns(ClockKind::Tsc, &program, raw, &mut ring);
        assert!((before - SLACK_NS..=after + SLACK_NS).contains(&converted));
    }
}

#[test]
fn eras_are_bounded() {
    let machine = Simulated::new(1);
    let mut series = ClockSeries::begun(&machine, false);
    for _ in 0..10 * MOST_ERAS {
        machine.step(1_000_000);
        series.tick_by(&machine);
    }
    assert_eq!(series.eras.len(), MOST_ERAS);
}

/// The real clocks of whatever machine runs this; how close is measured by the test of the whole road.
#[test]
fn readings_of_the_real_clocks_convert_to_when_they_were_taken() {
    for kind in [ClockKind::detect(), ClockKind::Monotonic] {
        let mut series = ClockSeries::new();
        let program = Anchor::now(kind);
        let before = nanoseconds(libc::CLOCK_REALTIME);
        let raw = kind.read();
        let after = nanoseconds(libc::CLOCK_REALTIME);
        series.tick();
        let converted = series.to_realtime_ns(kind, &program, raw, &mut RingTime::default());
        let slack = 20_000;
        assert!((before - slack..=after + slack).contains(&converted), "{before} {converted} {after}");
    }
}
