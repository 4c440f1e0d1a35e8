# SPDX-License-Identifier: Apache-2.0
"""The report's style sheet. In Python, so that it is installed wherever the package is.

One hue for each thing that is compared (s1 to s8: those of Okabe and Ito, darkened where they are text), one for heat
(h0 to h5); all else is grey. Light unless the reader's system is dark; paper is always light.
"""

from __future__ import annotations

SCROLLING = '<div class="scroll" role="region" aria-label="table" tabindex="0">'
"""The beginning of what is scrolled where it is too wide."""

STYLE = """\
:root {
  color-scheme: light;
  --page: #ffffff; --panel: #f6f7f9; --edge: #dde1e6; --text: #1b1f24; --soft: #59636e; --grid: #e3e7ec;
  --good: #00694b; --good-tint: #e2f3ec; --bad: #a63603; --bad-tint: #fdeae0; --note: #7a5200; --note-tint: #fdf3dc;
  --s0: #59636e; --s1: #0064a4; --s2: #b64a00; --s3: #007a5a; --s4: #7b3f99; --s5: #8a6d00; --s6: #b0306f;
    --s7: #31708f; --s8: #4d4d4d;
  --h0: #eaf2fa; --h1: #c3dcf0; --h2: #8fbfe2; --h3: #4f97cb; --h4: #1f6cae; --h5: #0b4783;
    --on-low: #12263a; --on-high: #ffffff;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    color-scheme: dark;
    --page: #14171b; --panel: #1d2127; --edge: #343b44; --text: #e8ebef; --soft: #a3adb8; --grid: #2c333b;
    --good: #5fd0a6; --good-tint: #14332a; --bad: #ff9d6c; --bad-tint: #3c2215; --note: #e9bf5b; --note-tint: #352a12;
    --s0: #a3adb8; --s1: #6cb6f2; --s2: #f39a5c; --s3: #4fcfa4; --s4: #c99be6; --s5: #dcc04c; --s6: #f088b8;
      --s7: #86c7dd; --s8: #c4c4c4;
    --h0: #1b2733; --h1: #1d3a57; --h2: #21537f; --h3: #2c74ad; --h4: #57a0d8; --h5: #a5d2f5;
      --on-low: #f2f7fc; --on-high: #0c1a28;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, header, footer, nav { max-width: 1168px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 32px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 21px; line-height: 1.25; margin: 48px 0 4px; padding-top: 12px; border-top: 2px solid var(--text); }
h3 { font-size: 16px; line-height: 1.3; margin: 28px 0 2px; }
p { margin: 6px 0; max-width: 78ch; }
.lead, figcaption, .soft { color: var(--soft); }
.lead { margin: 0; }
a { color: var(--s1); }
code { font: 13px/1.4 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
nav { margin-top: 14px; font-size: 14px; }
nav a { display: inline-block; margin: 0 16px 4px 0; }
.notice { margin: 18px 0 0; padding: 10px 14px; border-left: 4px solid var(--note); background: var(--note-tint);
  max-width: none; }
.answers { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; margin: 22px 0 0; padding: 0; list-style: none; }
.answers li { border: 1px solid var(--edge); border-left: 5px solid var(--soft); border-radius: 6px;
  padding: 14px 18px; background: var(--panel); }
.answers li.good { border-left-color: var(--good); }
.answers li.bad { border-left-color: var(--bad); }
.answers .question { margin: 0; font-size: 13px; color: var(--soft); }
.answers .headline { margin: 2px 0 6px; font-size: 19px; line-height: 1.3; font-weight: 650; }
.good .headline { color: var(--good); }
.bad .headline { color: var(--bad); }
.unknown .headline { color: var(--soft); font-weight: 500; }
.answers .detail { margin: 2px 0; font-size: 14px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 4px 24px; align-items: start; }
article { min-width: 0; }
.both { grid-column: 1 / -1; }
.aside { font-size: 13.5px; color: var(--soft); max-width: none; }
figure { margin: 8px 0 0; min-width: 0; }
figcaption { font-size: 13.5px; line-height: 1.45; margin-top: 2px; }
.legend { font-size: 13.5px; color: var(--soft); }
.legend span { display: inline-block; margin-right: 16px; overflow-wrap: anywhere; }
.legend svg { display: inline-block; width: 11px; height: 11px; margin-right: 5px; }
figure h4 { font-size: 14px; margin: 8px 0 4px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 11.5px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--text); }
svg .tick, svg .axis { fill: var(--soft); }
svg .below { font-size: 9.5px; }
svg .label { font-weight: 600; }
.narrow { display: none; }
.grid { stroke: var(--grid); stroke-width: 1; }
.base { stroke: var(--text); stroke-width: 1.4; }
.leader { stroke: var(--soft); stroke-width: 0.7; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.band { opacity: 0.2; stroke: none; }
.s0 { stroke: var(--s0); stroke-dasharray: 2 3; } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 {
  stroke: var(--s3); stroke-dasharray: 9 3; }
.s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); stroke-dasharray: 6 3; } .s6 { stroke: var(--s6);
  stroke-dasharray: 8 3 2 3; } .s7 { stroke: var(--s7); stroke-dasharray: 3 2; } .s8 { stroke: var(--s8);
  stroke-dasharray: 12 4; }
.f0 { fill: var(--s0); } .f1 { fill: var(--s1); } .f2 { fill: var(--s2); } .f3 { fill: var(--s3); } .f4 {
  fill: var(--s4); } .f5 { fill: var(--s5); } .f6 { fill: var(--s6); } .f7 { fill: var(--s7); } .f8 {
  fill: var(--s8); }
svg .t0 { fill: var(--s0); } svg .t1 { fill: var(--s1); } svg .t2 { fill: var(--s2); } svg .t3 { fill: var(--s3); }
  svg .t4 { fill: var(--s4); } svg .t5 { fill: var(--s5); } svg .t6 { fill: var(--s6); } svg .t7 { fill: var(--s7); }
  svg .t8 { fill: var(--s8); }
.b0 rect { fill: var(--edge); } .b1 rect { fill: var(--s1); } .b2 rect { fill: var(--s2); } .b3 rect {
  fill: var(--s3); } .b4 rect { fill: var(--s4); } .b5 rect { fill: var(--s5); } .b6 rect { fill: var(--s6); }
  .b7 rect { fill: var(--s7); } .b8 rect { fill: var(--s8); }
.bar rect { stroke: var(--page); stroke-width: 0.5; }
svg .bar .in { fill: var(--page); } svg .b0 .in { fill: var(--text); }
.h0 rect { fill: var(--h0); } .h1 rect { fill: var(--h1); } .h2 rect { fill: var(--h2); } .h3 rect { fill: var(--h3);
  } .h4 rect { fill: var(--h4); } .h5 rect { fill: var(--h5); }
svg .cell text { fill: var(--on-low); }
svg .h4 text, svg .h5 text { fill: var(--on-high); }
.missing rect { fill: var(--panel); stroke: var(--edge); stroke-dasharray: 3 3; }
svg .missing text { fill: var(--soft); }
.scroll { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
tbody th { color: var(--text); font-weight: 500; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.prose { overflow-wrap: anywhere; min-width: 16ch; }
.matrix { font-size: 13px; }
.matrix th, .matrix td { padding: 2px 10px 2px 0; white-space: nowrap; }
.matrix td { border-left: 3px solid var(--page); padding-left: 8px; }
.matrix .family { color: var(--soft); padding-top: 16px; }
.works { background: var(--good-tint); color: var(--good); }
.neither { background: var(--panel); color: var(--soft); }
.failed { background: var(--bad-tint); color: var(--bad); font-weight: 650; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--soft); font-size: 14px; }
ul { padding-left: 20px; }
footer { margin: 56px auto 32px; color: var(--soft); font-size: 13px; }
@media screen and (max-width: 900px) {
  .pair { grid-template-columns: 1fr; }
}
@media screen and (max-width: 640px) {
  main, header, footer, nav { padding: 0 16px; }
  header { padding-top: 22px; }
  h1 { font-size: 24px; }
  .answers { grid-template-columns: 1fr; gap: 10px; }
  .wide { display: none; }
  .narrow { display: block; }
  th, td { padding-right: 10px; }
}
@media print {
  body { font-size: 10.5pt; }
  nav, details:not([open]) { display: none; }
  figure, li, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .answers li, .works, .failed, .neither, svg * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""
