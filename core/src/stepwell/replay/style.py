"""The style of a replay's page, light and dark as the reader's system is."""

LIGHT = ("#0b6e4f", "#d1495b", "#2a6fdb", "#c77700", "#7b3fb3", "#12868f", "#8a5a2b", "#c2399a", "#5c6b2e", "#4a4f57")
DARK = ("#4cc38a", "#ff7a85", "#7fb2ff", "#ffb454", "#c39bff", "#4fd1d9", "#d3a374", "#ff8fd8", "#b6cc6a", "#b4bac4")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1d2126; --soft: #5b636e; --line: #d9dde2; --paper: #ffffff; --bar: #9db4d0;
  --device: #0b6e4f; --host: #7fb069; --storage: #e6aa68; --computed: #c9ced5; --good: #0b6e4f; --bad: #b3261e;
  {_palette(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e7eaee; --soft: #a2abb7; --line: #343b45; --paper: #14181d;
  --bar: #47617f; --device: #2f9e73; --host: #8cbf74; --storage: #d9985a; --computed: #4a525d; --good: #57d19b;
  --bad: #ff8a80; {_palette(DARK)} }} }}
* {{ box-sizing: border-box }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2rem auto; padding: 0 1.2rem;
  color: var(--ink); background: var(--paper) }}
h1 {{ font-size: 1.6rem; overflow-wrap: anywhere }}
h2 {{ font-size: 1.2rem; margin: 2.4rem 0 .4rem }} h3 {{ font-size: 1rem; margin: 1rem 0 0 }}
p {{ color: var(--soft); margin: .3rem 0 .8rem }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums }}
td, thead th {{ padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap }}
thead th {{ white-space: normal; vertical-align: bottom; font-weight: 600; min-width: 5.2em }}
tbody th {{ position: sticky; left: 0; background: var(--paper); text-align: left; font-weight: 500;
  white-space: pre; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line) }}
thead th:first-child {{ min-width: 0 }}
tr.parted > * {{ border-top: 2px solid var(--soft) }}
td.bar {{ background: linear-gradient(to right, var(--bar) var(--w), transparent 0) left bottom / 100% 3px no-repeat }}
small {{ display: block; font-size: 12px; line-height: 1.25 }}
td {{ vertical-align: top }}
.better {{ color: var(--good) }} .worse {{ color: var(--bad) }} .even {{ color: var(--soft) }}
i {{ display: inline-block; width: .75em; height: .75em; margin-right: .5em; border-radius: 2px }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; color: var(--ink); font-size: 13.5px; margin: .5rem 0 }}
.legend svg {{ width: 26px; margin-right: .4em; vertical-align: middle }}
.k {{ cursor: default }}
figure {{ margin: 0 0 1rem }}
.pair {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 1rem }}
.three {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: .8rem }}
svg {{ width: 100%; display: block }}
.legend svg {{ display: inline-block }}
svg text {{ font: 12px system-ui, sans-serif; fill: var(--soft) }}
svg text.head {{ fill: var(--ink); font-weight: 600 }}
.grid {{ stroke: var(--line); stroke-width: 1; fill: none }}
.s {{ transition: opacity .1s }}
.dot {{ opacity: 0 }} .dot:hover, .dot.shown {{ opacity: 1 }}
.catch {{ fill: transparent }}
.thick {{ opacity: .45 }}
.median {{ stroke: var(--ink); stroke-width: 2; fill: none }}
.mean {{ fill: var(--ink) }} .worst {{ fill: var(--paper); stroke-width: 1.5 }}
rect.device, i.device {{ fill: var(--device); background: var(--device) }}
rect.host, i.host {{ fill: var(--host); background: var(--host) }}
rect.storage, i.storage {{ fill: var(--storage); background: var(--storage) }}
rect.computed, i.computed {{ fill: var(--computed); background: var(--computed) }}
details {{ margin-top: 2.4rem }} summary {{ font-size: 1.2rem; font-weight: 600; cursor: pointer }}
"""
