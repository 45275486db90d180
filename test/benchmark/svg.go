package main

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Positions in a drawing, in pixels.
const (
	drawingWidth  = 920
	drawingHeight = 440
	areaLeft      = 64 // the area in which the lines are
	areaRight     = 540
	areaTop       = 62
	areaBottom    = 376
	areaMargin    = 24 // distance of the first and the last entry from the sides of the area
	legendLeft    = 560
	legendStep    = 24
	mostDates     = 7 // number of dates that fit below the area
)

// style colours a drawing for light and for dark pages. The colours of lines are readable on both backgrounds.
const style = `text{font:12px system-ui,sans-serif;fill:#1f2328}.back{fill:#fff}.title{font-size:15px;font-weight:600}
.small{font-size:11px;fill:#59636e}.grid{stroke:#d1d9e0}.one{stroke:#59636e;stroke-width:1.5}
.line{fill:none;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.back{fill:#0d1117}.small{fill:#9198a1}.grid{stroke:#3d444d}
.one{stroke:#9198a1}}`

// lineStyle returns the colour and the dashes of the line with an index. Every second line is dashed.
func lineStyle(i int) (colour, dashes string) {
	colours := []string{"#2f81f7", "#e36209", "#1a9850", "#d73a49", "#8957e5", "#b08800", "#0b93a8", "#d6409f"}
	dashes = "none"
	if i%2 == 1 {
		dashes = "7 3"
	}
	return colours[i%len(colours)], dashes
}

// drawing is a plot with the values that it shows. Its vertical axis is logarithmic, so that equal distances are equal
// factors. The entries have equal distances on the horizontal axis, because several may have the same date.
type drawing struct {
	plot
	entries history
	lines   []line
	text    bytes.Buffer
}

// svg returns the drawing. The same history has the same bytes.
func (d drawing) svg() []byte {
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`,
		drawingWidth, drawingHeight, drawingWidth, drawingHeight)
	d.add("<title>%s</title>\n<style>%s</style>", escape(d.title), style)
	d.add(`<rect class="back" width="%d" height="%d" rx="6"/>`, drawingWidth, drawingHeight)
	d.label("title", areaLeft, 26, "start", d.title)
	d.label("small", areaLeft, 46, "start", d.axis+", logarithmic")
	marks := ticks(d.bounds())
	d.drawAxes(marks)
	for i := range d.lines {
		d.drawLine(i, marks)
	}
	d.drawLegend()
	d.add("</svg>")
	return d.text.Bytes()
}

func (d *drawing) add(format string, arguments ...any) {
	fmt.Fprintf(&d.text, format+"\n", arguments...)
}

// label adds a text. anchor is start, middle or end.
func (d *drawing) label(class string, x, y float64, anchor, text string) {
	d.add(`<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, class, x, y, anchor, escape(text))
}

func escape(text string) string {
	var escaped strings.Builder
	_ = xml.EscapeText(&escaped, []byte(text)) // a Builder returns no errors
	return escaped.String()
}

// bounds returns the smallest and the largest value of all lines.
func (d *drawing) bounds() (least, most float64) {
	least, most = math.Inf(1), 0
	for _, l := range d.lines {
		for _, v := range l.values {
			if v > 0 {
				least, most = min(least, v), max(most, v)
			}
		}
	}
	if most == 0 {
		return 1, 2 // there is no value
	}
	return least, most
}

// ticks returns the marks of a logarithmic axis. The first one is not greater than the least value, and the last one is
// greater than the largest.
func ticks(least, most float64) []float64 {
	var all []float64
	for power := math.Floor(math.Log10(least)); ; power++ {
		for _, digits := range []float64{10, 15, 20, 30, 50, 70} {
			mark := digits * math.Pow(10, power) / 10
			if mark <= least {
				all = nil
			}
			all = append(all, mark)
			if mark > most {
				return all
			}
		}
	}
}

// horizontal returns the position of an entry.
func (d *drawing) horizontal(entry int) float64 {
	if len(d.entries) < 2 {
		return (areaLeft + areaRight) / 2
	}
	const width = areaRight - areaLeft - 2*areaMargin
	return areaLeft + areaMargin + width*float64(entry)/float64(len(d.entries)-1)
}

// vertical returns the position of a value on an axis with the given marks.
func vertical(value float64, marks []float64) float64 {
	first, last := math.Log(marks[0]), math.Log(marks[len(marks)-1])
	return areaBottom - (areaBottom-areaTop)*(math.Log(value)-first)/(last-first)
}

// drawAxes draws a line for each mark, and the dates and commits of the entries, or of some if there are many.
func (d *drawing) drawAxes(marks []float64) {
	for _, mark := range marks {
		class := "grid"
		if mark == 1 {
			class = "one" // the costs of both servers are equal
		}
		at := vertical(mark, marks)
		d.add(`<line class="%s" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`, class, areaLeft, at, areaRight, at)
		d.label("small", areaLeft-8, at+4, "end", times(mark))
	}
	step := (len(d.entries) + mostDates - 1) / mostDates
	for i, e := range d.entries {
		if (len(d.entries)-1-i)%step == 0 { // the newest entry always has its date
			d.label("small", d.horizontal(i), areaBottom+20, "middle", e.Date)
			d.label("small", d.horizontal(i), areaBottom+36, "middle", e.Commit)
		}
	}
	d.label("small", (areaLeft+areaRight)/2, areaBottom+54, "middle", "recordings: date and commit")
}

// drawLine draws one line and its points. The line connects the known values.
func (d *drawing) drawLine(index int, marks []float64) {
	colour, dashes := lineStyle(index)
	var points []string
	for i, v := range d.lines[index].values {
		if v > 0 {
			points = append(points, fmt.Sprintf("%.1f,%.1f", d.horizontal(i), vertical(v, marks)))
		}
	}
	d.add(`<polyline class="line" stroke="%s" stroke-dasharray="%s" points="%s"/>`,
		colour, dashes, strings.Join(points, " "))
	for i, v := range d.lines[index].values {
		if v > 0 {
			d.add(`<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"><title>%s, %s: %s</title></circle>`,
				d.horizontal(i), vertical(v, marks), colour, escape(d.lines[index].name), escape(d.entries[i].Date), times(v))
		}
	}
}

// drawLegend lists the lines in the order of their newest values, which it prints, so that a line is next to its name.
func (d *drawing) drawLegend() {
	order := make([]int, len(d.lines))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d.lines[b].last(), d.lines[a].last()) })
	for position, index := range order {
		if d.lines[index].last() == 0 {
			continue
		}
		colour, dashes := lineStyle(index)
		at := float64(areaTop + 10 + legendStep*position)
		d.add(`<line class="line" stroke="%s" stroke-dasharray="%s" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/>`,
			colour, dashes, legendLeft, at, legendLeft+26, at)
		d.add(`<circle cx="%d" cy="%.1f" r="3.5" fill="%s"/>`, legendLeft+13, at, colour)
		d.label("", legendLeft+74, at+4, "end", times(d.lines[index].last()))
		d.label("", legendLeft+84, at+4, "start", d.lines[index].name)
	}
}

// times formats a multiple with at most two significant decimals.
func times(multiple float64) string {
	text := fmt.Sprintf("%.2f", multiple)
	if multiple >= 2 {
		text = fmt.Sprintf("%.1f", multiple)
	}
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + "×"
}
