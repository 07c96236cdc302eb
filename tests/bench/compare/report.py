"""From runs to a table. Pure."""
import dataclasses
import statistics

from processes import Failed


@dataclasses.dataclass
class Row:
    case: str  # model/setup/system
    failure: str = ""
    step_seconds: list = dataclasses.field(default_factory=list)  # of all runs, after warm-up
    run_medians: list = dataclasses.field(default_factory=list)
    processor_seconds: list = dataclasses.field(default_factory=list)  # all processes together; may be empty
    losses: list = dataclasses.field(default_factory=list)  # of the first run
    peak_bytes: int = 0
    load: list = dataclasses.field(default_factory=list)  # of the machine, before each run
    shares: list = dataclasses.field(default_factory=list)  # of the ranks' time, a dictionary a step; may be empty

    @property
    def median(self):
        return statistics.median(self.step_seconds)

    @property
    def group(self):
        return self.case.rsplit("/", 1)[0]

    @property
    def system(self):
        return self.case.rsplit("/", 1)[1]


def add_run(row, record, warm_up, load):
    measured = record["step_seconds"][warm_up:]
    if not measured:
        raise Failed(f"it reported {len(record['step_seconds'])} steps, {warm_up} of them warm-up")
    row.step_seconds += measured
    row.run_medians.append(statistics.median(measured))
    row.processor_seconds += record["processor_seconds"][warm_up:]
    row.shares += record.get("shares", [])[warm_up:]
    row.losses = row.losses or record["losses"]
    row.peak_bytes = max(row.peak_bytes, record["peak_bytes"])
    row.load.append(load)


def ratio(row, ours):
    """Theirs through ours, the median over the rounds: only runs of the same round are compared."""
    return statistics.median(theirs / mine for theirs, mine in zip(row.run_medians, ours.run_medians))


def loss_gap(row, ours):
    """The largest distance of the two curves, relative."""
    return max(abs(a - b) / b for a, b in zip(row.losses, ours.losses))


HEAD = ("| case | median step, s | fastest .. slowest | Esteira is faster by | processors' time a step, s | peak memory, GiB "
        "| largest loss gap | load |", "|---|---|---|---|---|---|---|---|")


def line(row, ours):
    if row.failure:
        return f"| {row.case} | not run | {row.failure.replace('|', '/')} | | | | | |"
    cells = [row.case, f"{row.median:.3f}", f"{min(row.step_seconds):.3f} .. {max(row.step_seconds):.3f}"]
    compared = ours is not None and ours is not row and not ours.failure
    cells.append(f"{ratio(row, ours):.2f}x" if compared else "")
    cells.append(f"{statistics.median(row.processor_seconds):.2f}" if row.processor_seconds else "")
    cells.append(f"{row.peak_bytes / 2**30:.2f}")
    cells.append(f"{100 * loss_gap(row, ours):.2f} %" if compared else "")
    cells.append(" ".join(f"{load:.1f}" for load in row.load))
    return "| " + " | ".join(cells) + " |"


def table(rows):
    ours = {row.group: row for row in rows if row.system == "esteira"}
    return "\n".join([*HEAD, *(line(row, ours.get(row.group)) for row in rows)])


def shares(rows):
    """What the ranks' time in a step goes into, where a system tells: means over the steps; the rest is the system's own."""
    told = [row for row in rows if row.shares]
    if not told:
        return ""
    phases = list(told[0].shares[0])
    lines = ["| of the ranks' time | " + " | ".join(phases) + " |", "|---" * (1 + len(phases)) + "|"]
    for row in told:
        means = [statistics.mean(step[phase] for step in row.shares) for phase in phases]
        lines.append(f"| {row.case} | " + " | ".join(f"{100 * mean:.1f} %" for mean in means) + " |")
    return "\n".join(lines)


def curves(rows):
    """The loss of every step, a line a case."""
    return "\n".join(f"{row.case}: " + " ".join(f"{loss:.3f}" for loss in row.losses) for row in rows if row.losses)
