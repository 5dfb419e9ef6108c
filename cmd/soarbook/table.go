package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// cellWidth is the widest that a table's cell is printed, in characters; longer text is cut and ends in an ellipsis.
const cellWidth = 60

// print writes the table with aligned columns, numbers to the right. Line breaks in a cell become spaces.
func (t *resultTable) print(w io.Writer) error {
	rows := [][]string{t.Columns}
	right := make([]bool, len(t.Columns))
	for _, row := range t.Rows {
		var cells []string
		for j, v := range row {
			if _, ok := v.(json.Number); ok {
				right[j] = true
			}
			text := ""
			if v != nil {
				text = strings.Join(strings.Fields(fmt.Sprint(v)), " ")
			}
			if r := []rune(text); len(r) > cellWidth {
				text = string(r[:cellWidth-1]) + "…"
			}
			cells = append(cells, text)
		}
		rows = append(rows, cells)
	}
	widths := make([]int, len(t.Columns))
	for _, row := range rows {
		for j, text := range row {
			widths[j] = max(widths[j], utf8.RuneCountInString(text))
		}
	}
	for i, row := range rows {
		var b strings.Builder
		for j, text := range row {
			pad := strings.Repeat(" ", widths[j]-utf8.RuneCountInString(text))
			if j > 0 {
				b.WriteString("  ")
			}
			if right[j] {
				b.WriteString(pad + text)
			} else {
				b.WriteString(text + pad)
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
		if i == 0 {
			var rule []string
			for _, n := range widths {
				rule = append(rule, strings.Repeat("─", n))
			}
			if _, err := fmt.Fprintln(w, strings.Join(rule, "  ")); err != nil {
				return err
			}
		}
	}
	return nil
}
