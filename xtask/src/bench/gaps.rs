//! The gap that an application sees when its relay goes: the longest time between two echoes of a
//! ping-pong of 1 kHz, by what happened and by the delay between a node and its relays.
//!
//! Nodes and relays are on hosts of their own (network namespaces, wires in user space); the delay is
//! on the nodes' wires. Several relays take turns, so that none is killed again before its run counts
//! as a good one; with the only relay, several whole pools do.

use crate::release;
use anyhow::{Context, Result, bail};
use fairlead_testkit::estate::Member;
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Estate, PingPong, Target, Weather, process};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Relays of the pool in which they are hurt in turn.
const RELAYS: u8 = 4;
/// Pools with one relay each.
const ALONE: u8 = 3;
/// A worker that has run this long is started again at once, however it ends (the supervisor's rule).
const GOOD_RUN: Duration = Duration::from_millis(5_200);
/// Until echoes come evenly and both nodes are on every relay again.
const EVEN_LIMIT: Duration = Duration::from_secs(30);
/// A planned move leaves within the worker's grace; what it does shows in this time.
const PLANNED_WATCH: Duration = Duration::from_millis(700);

/// Arguments of `cargo xtask bench gaps`.
#[derive(Debug, clap::Args)]
pub(crate) struct GapsArgs {
    /// A short run, of whatever build, that shows that everything works; its figures mean nothing.
    #[arg(long)]
    smoke: bool,
    /// Rounds of each cell.
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// One-way delays between nodes and relays, in milliseconds.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 10, 50])]
    delay_ms: Vec<u64>,
    /// Only these (repeatable).
    #[arg(long, value_enum)]
    only: Vec<Event>,
    /// Prints the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// What happens to the carrying relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Event {
    /// Nothing: what machine and measurement do by themselves in the time of a planned move.
    Nothing,
    /// Its worker is asked to end and tells its nodes first.
    Planned,
    /// Its worker dies of SIGKILL.
    Killed,
    /// Nothing passes to or from its host.
    Vanished,
    /// Its worker dies of SIGKILL, and there is no other relay.
    Only,
}

impl Event {
    const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Planned,
        Self::Killed,
        Self::Vanished,
        Self::Only,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing happens",
            Self::Planned => "planned move",
            Self::Killed => "killed worker",
            Self::Vanished => "vanished host",
            Self::Only => "only relay restarted",
        }
    }
}

/// One cell of the table.
struct Cell {
    event: Event,
    delay_ms: u64,
    gaps: Vec<Gap>,
}

/// The longest gap of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Gap {
    length: Duration,
    /// When it began, after the event.
    after: Duration,
}

/// Measures and prints the table.
pub(super) fn run(arguments: &GapsArgs) -> Result<()> {
    if !arguments.smoke && release::again()? {
        return Ok(());
    }
    let wanted = |event: &Event| arguments.only.is_empty() || arguments.only.contains(event);
    let (shared, alone): (Vec<Event>, Vec<Event>) = Event::ALL
        .into_iter()
        .filter(wanted)
        .partition(|event| *event != Event::Only);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let start = Instant::now();
    let (rounds, delays) = match arguments.smoke {
        true => (2, vec![0]),
        false => (arguments.rounds, arguments.delay_ms.clone()),
    };
    let mut cells = Vec::new();
    if !shared.is_empty() {
        cells.extend(runtime.block_on(with_others(rounds, &delays, &shared))?);
    }
    if !alone.is_empty() {
        cells.extend(runtime.block_on(without_others(rounds, &delays))?);
    }
    eprintln!("gaps: {:.0} s in all", start.elapsed().as_secs_f64());
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&to_json(&cells))?);
    } else {
        println!("{}", to_text(&cells, &delays));
    }
    Ok(())
}

/// A pool and what runs through it.
struct Ground {
    // Before the estate: its connection ends first.
    pings: PingPong,
    _target: Target,
    estate: Estate,
}

impl Ground {
    async fn build(relays: u8) -> Result<Self> {
        let estate = Estate::new(relays)?;
        let target = Target::start_in(&estate.beta.host, Behaviour::Echo)?;
        estate.build(target.address()).await?;
        estate.until_connected(EVEN_LIMIT).await?;
        let link = estate.listen()?;
        let stream = estate.alpha.host.run(|| std::net::TcpStream::connect(link))??;
        let pings = PingPong::start(stream)?;
        pings.until_even(EVEN_LIMIT).await?;
        Ok(Self {
            pings,
            _target: target,
            estate,
        })
    }

    async fn set_delay(&self, ms: u64) -> Result<()> {
        let weather = Weather::clear().delay(Duration::from_millis(ms));
        self.estate.alpha.weather(weather);
        self.estate.beta.weather(weather);
        // Round trips are learnt anew: a few pings of every path.
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.pings.until_even(EVEN_LIMIT).await
    }

    async fn round(&self, event: Event) -> Result<Gap> {
        self.estate.until_connected(EVEN_LIMIT).await?;
        self.pings.until_even(EVEN_LIMIT).await?;
        let relay = self.estate.carrying().await?;
        if event != Event::Vanished {
            tokio::time::sleep(GOOD_RUN.saturating_sub(relay.age()?)).await;
        }
        let before = self.pings.received();
        self.pings.begin();
        match event {
            Event::Nothing => {}
            Event::Planned => process::terminate(relay.pid()?)?,
            Event::Killed | Event::Only => process::kill9(relay.pid()?)?,
            Event::Vanished => relay.cut(),
        }
        let gap = self.gap(event, relay, before).await;
        // Healed before anything is judged: the next round needs it.
        relay.weather(Weather::clear());
        gap
    }

    async fn gap(&self, event: Event, relay: &Member, before: u64) -> Result<Gap> {
        match event {
            Event::Nothing | Event::Planned => tokio::time::sleep(PLANNED_WATCH).await,
            // What is on its way still arrives: the loss shows a round trip later at most.
            Event::Killed | Event::Vanished | Event::Only => tokio::time::sleep(self.round_trip()).await,
        }
        self.pings.until_even(EVEN_LIMIT).await?;
        let gap = Gap {
            length: self.pings.longest(),
            after: self.pings.longest_after(),
        };
        if self.pings.received() == before {
            bail!("no echo came");
        }
        if !matches!(event, Event::Nothing | Event::Only) {
            let now = self.estate.carrying().await?;
            if now.name == relay.name {
                bail!("{} still carries after {}", relay.name, event.name());
            }
        }
        Ok(gap)
    }

    fn round_trip(&self) -> Duration {
        // Four ways of at most 50 ms each, and room.
        Duration::from_millis(250)
    }
}

async fn with_others(rounds: usize, delays: &[u64], events: &[Event]) -> Result<Vec<Cell>> {
    let ground = Ground::build(RELAYS).await?;
    let mut cells = Vec::new();
    for &delay_ms in delays {
        ground.set_delay(delay_ms).await?;
        for &event in events {
            let start = Instant::now();
            let mut gaps = Vec::new();
            for round in 0..rounds {
                let gap = ground.round(event).await;
                gaps.push(gap.with_context(|| format!("{}, {delay_ms} ms, round {round}", event.name()))?);
            }
            cells.push(told(event, delay_ms, gaps, start));
        }
    }
    Ok(cells)
}

async fn without_others(rounds: usize, delays: &[u64]) -> Result<Vec<Cell>> {
    let mut grounds = Vec::new();
    for _ in 0..ALONE {
        grounds.push(Ground::build(1).await?);
    }
    let mut cells = Vec::new();
    for &delay_ms in delays {
        for ground in &grounds {
            ground.set_delay(delay_ms).await?;
        }
        let start = Instant::now();
        let mut gaps = Vec::new();
        for (round, ground) in (0..rounds).zip(grounds.iter().cycle()) {
            let gap = ground.round(Event::Only).await;
            gaps.push(gap.with_context(|| format!("only relay, {delay_ms} ms, round {round}"))?);
        }
        cells.push(told(Event::Only, delay_ms, gaps, start));
    }
    Ok(cells)
}

fn told(event: Event, delay_ms: u64, mut gaps: Vec<Gap>, start: Instant) -> Cell {
    gaps.sort();
    let cell = Cell {
        event,
        delay_ms,
        gaps,
    };
    eprintln!(
        "gaps: {} at {delay_ms} ms: {} in {:.0} s",
        event.name(),
        cell.figure(),
        start.elapsed().as_secs_f64()
    );
    cell
}

impl Cell {
    fn median_ms(&self) -> f64 {
        let middle = self.gaps.get(self.gaps.len() / 2);
        middle.map_or(f64::NAN, |gap| ms(gap.length))
    }

    fn most_ms(&self) -> f64 {
        self.gaps.last().map_or(f64::NAN, |gap| ms(gap.length))
    }

    fn figure(&self) -> String {
        format!("{:.1} / {:.1}", self.median_ms(), self.most_ms())
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn to_text(cells: &[Cell], delays: &[u64]) -> String {
    let heads: Vec<String> = delays.iter().map(|ms| format!("{ms} ms")).collect();
    let mut lines = vec![
        format!("| longest gap, median / maximum in ms | {} |", heads.join(" | ")),
        format!("|---|{}", "---|".repeat(delays.len())),
    ];
    for event in Event::ALL {
        let row: Vec<String> = delays
            .iter()
            .filter_map(|ms| cells.iter().find(|c| c.event == event && c.delay_ms == *ms))
            .map(Cell::figure)
            .collect();
        if !row.is_empty() {
            lines.push(format!("| {} | {} |", event.name(), row.join(" | ")));
        }
    }
    lines.join("\n")
}

fn to_json(cells: &[Cell]) -> Value {
    let cell = |cell: &Cell| {
        let each = |of: fn(&Gap) -> Duration| cell.gaps.iter().map(of).map(ms).collect::<Vec<f64>>();
        json!({
            "event": cell.event.name(), "one_way_delay_ms": cell.delay_ms,
            "median_ms": cell.median_ms(), "max_ms": cell.most_ms(), "gaps_ms": each(|gap| gap.length),
            "after_ms": each(|gap| gap.after),
        })
    };
    Value::Array(cells.iter().map(cell).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_row_an_event_and_a_column_a_delay() {
        let gap = |ms| Gap {
            length: Duration::from_millis(ms),
            after: Duration::from_millis(1),
        };
        let cell = |event, delay_ms, gaps: [u64; 3]| Cell {
            event,
            delay_ms,
            gaps: gaps.map(gap).to_vec(),
        };
        let cells = [
            cell(Event::Killed, 0, [10, 20, 90]),
            cell(Event::Killed, 10, [1, 2, 3]),
            cell(Event::Only, 0, [7, 8, 9]),
        ];
        let text = to_text(&cells, &[0, 10]);
        assert!(
            text.contains("| killed worker | 20.0 / 90.0 | 2.0 / 3.0 |"),
            "{text}"
        );
        assert!(text.contains("| only relay restarted | 8.0 / 9.0 |"), "{text}");
        assert!(!text.contains("planned"), "{text}");
        assert_eq!(to_json(&cells)[0]["max_ms"], 90.0);
        assert_eq!(to_json(&cells)[0]["after_ms"][2], 1.0);
    }
}
