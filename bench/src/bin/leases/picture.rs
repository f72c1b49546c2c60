//! Draws what eight processes are admitted in each window of a limit, while things break.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use tollgate_bench::show_progress;
use tollgate_bench::table::thousands;
use tollgate_launcher::{Flavour, Launch, Proxy};
use tollgate_pictures::svg::{Area, Caption, Point, Svg};

use crate::processes::{SharingProcess, now_ms};

const LIMIT: &str = "fixed-window limit=10000 window=1s";
const LIMIT_UNITS: u64 = 10_000;
const DEMAND: u64 = 20_000;
const PROCESSES: usize = 8;
const WINDOWS: u64 = 20;

/// The faults: the window at whose start each one begins, and its name in the picture.
const FAULTS: [(u64, &str); 5] = [
    (4, "2 processes killed"),
    (7, "2 frozen for 1.5 s"),
    (11, "4 replies lost"),
    (13, "Redis frozen for 1 s"),
    (16, "network cut for 1 s"),
];

/// The units admitted in each window of a run.
pub(crate) struct FaultRun {
    windows: Vec<u64>,
}

pub(crate) fn measure() -> Result<FaultRun> {
    let server = Launch::new(Flavour::Redis).start()?;
    let proxy = Proxy::start(server.addr())?;
    let demand = DEMAND / PROCESSES as u64;
    let mut processes = (0..PROCESSES)
        .map(|_| SharingProcess::start(&proxy.url(), LIMIT, demand))
        .collect::<Result<Vec<_>>>()?;
    for process in &mut processes {
        process.set_active(true)?;
    }
    // The first whole second after the processes have begun.
    let first_ms = (now_ms() / 1_000 + 2) * 1_000;
    let wait_until = |at_ms: u64| sleep(Duration::from_millis(at_ms.saturating_sub(now_ms())));
    for window in 0..WINDOWS {
        wait_until(first_ms + window * 1_000);
        show_progress(&format!("faults: {window} of {WINDOWS} s"));
        match window {
            4 => processes.iter_mut().take(2).try_for_each(SharingProcess::kill)?,
            7 => {
                for process in &processes[2..4] {
                    process.signal(Signal::STOP)?;
                }
                wait_until(first_ms + window * 1_000 + 1_500);
                for process in &processes[2..4] {
                    process.signal(Signal::CONT)?;
                }
            }
            11 => proxy.drop_replies(4),
            13 => {
                server.freeze();
                wait_until(first_ms + window * 1_000 + 1_000);
                server.thaw();
            }
            16 => {
                proxy.refuse_connections();
                proxy.cut_connections();
                wait_until(first_ms + window * 1_000 + 1_000);
                proxy.accept_connections();
            }
            _ => {}
        }
    }
    wait_until(first_ms + WINDOWS * 1_000);
    let mut admitted: BTreeMap<u64, u64> = BTreeMap::new();
    for process in processes {
        for (at_ms, units) in process.end()?.0 {
            *admitted.entry(at_ms / 1_000).or_insert(0) += units;
        }
    }
    let window = |nth| admitted.get(&(first_ms / 1_000 + nth)).copied().unwrap_or(0);
    Ok(FaultRun { windows: (0..WINDOWS).map(window).collect() })
}

const WIDTH: u32 = 1010;
const PANEL: Area = Area { left: 70.0, top: 96.0, width: 910.0, height: 220.0 };
const TOP_UNITS: f64 = 12_000.0;

const STYLE: &str = "\
.bar{fill:#0072b2}.limit{stroke:#d55e00;stroke-width:2;fill:none}.fault{font-size:11px;fill:#57606a}";

pub(crate) fn draw(run: &FaultRun) -> String {
    let most = run.windows.iter().max().copied().unwrap_or(0);
    let caption = Caption {
        title: "Units admitted in each second by 8 processes with leases".to_owned(),
        description: format!(
            "The limit is {} in each second. The most in a second is {}. {}.",
            thousands(LIMIT_UNITS as f64),
            thousands(most as f64),
            FAULTS.map(|(second, name)| format!("At {second} s: {name}")).join(". "),
        ),
    };
    let mut svg = Svg::new(WIDTH, 380, &caption);
    svg.style(STYLE);
    svg.text("title", Point { x: 24.0, y: 34.0 }, &caption.title);
    let note = "They ask for twice the limit, and things break. The line is the limit. A killed process leaves its \
                units unused, and its callers are gone.";
    svg.text("note", Point { x: 24.0, y: 54.0 }, note);
    let pitch = PANEL.width / WINDOWS as f64;
    let y = |units: f64| PANEL.bottom() - PANEL.height * units / TOP_UNITS;
    for (nth, units) in run.windows.iter().enumerate() {
        let (left, top) = (PANEL.left + nth as f64 * pitch + 3.0, y(*units as f64));
        let height = PANEL.bottom() - top;
        svg.rect("bar", Area { left, top, width: pitch - 6.0, height });
        if nth % 5 == 0 {
            let at = Point { x: left - 3.0, y: PANEL.bottom() + 16.0 };
            svg.text("tick middle", at, &format!("{nth} s"));
        }
    }
    let line = y(LIMIT_UNITS as f64);
    svg.line("limit", Point { x: PANEL.left, y: line }, Point { x: PANEL.right(), y: line });
    svg.text(
        "tick end",
        Point { x: PANEL.left - 8.0, y: line + 4.0 },
        &thousands(LIMIT_UNITS as f64),
    );
    let bottom = PANEL.bottom();
    svg.line("axis", Point { x: PANEL.left, y: bottom }, Point { x: PANEL.right(), y: bottom });
    for (second, name) in FAULTS {
        let x = PANEL.left + second as f64 * pitch;
        svg.line("grid", Point { x, y: PANEL.top - 14.0 }, Point { x, y: bottom });
        svg.text("fault", Point { x: x + 3.0, y: PANEL.top - 6.0 }, name);
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_has_a_bar_and_every_fault_a_name() {
        let svg = draw(&FaultRun { windows: vec![9_900; 20] });
        assert_eq!(svg.matches("class=\"bar\"").count(), 20);
        for (_, name) in FAULTS {
            assert!(svg.contains(&format!(">{name}</text>")), "{name}");
        }
    }
}
