package request

import (
	"net/http"
	"sync"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/net"
)

// These are kube-apiserver's limits; clients and proxies limit the size of headers. When the warnings of a response
// exceed totalRunes, each is truncated to itemRunes. When the truncated warnings exceed totalRunes, no more are added.
const (
	totalRunes = 4 * 1024
	itemRunes  = 256
)

// Warnings adds each distinct warning to the headers of the response. It implements the interface Recorder of
// k8s.io/apiserver/pkg/warning. Warnings that are added after the response has started are lost.
type Warnings struct {
	mu     sync.Mutex
	writer http.ResponseWriter
	added  []addedWarning
	// written is the number of runes in the headers.
	written int
	cutting bool
}

type addedWarning struct{ agent, text string }

// To sets the response whose headers get the warnings. Warnings that were added earlier are lost.
func (w *Warnings) To(writer http.ResponseWriter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writer = writer
}

// AddWarning adds a warning. agent must not contain spaces; an empty agent becomes "-".
func (w *Warnings) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text == "" || w.writer == nil || (w.cutting && w.written >= totalRunes) || w.has(text) {
		return
	}
	w.added = append(w.added, addedWarning{agent, text})
	if _, err := net.NewWarningHeader(299, agent, text); err != nil {
		return
	}
	if w.cutting || w.written+utf8.RuneCountInString(text) <= totalRunes {
		w.write(agent, text)
		return
	}
	w.cutting, w.written = true, 0
	w.writer.Header().Del("Warning")
	for _, earlier := range w.added {
		w.write(earlier.agent, earlier.text)
	}
}

func (w *Warnings) has(text string) bool {
	for i := range w.added {
		if w.added[i].text == text {
			return true
		}
	}
	return false
}

func (w *Warnings) write(agent, text string) {
	runes := utf8.RuneCountInString(text)
	if w.cutting && runes > itemRunes {
		text, runes = string([]rune(text)[:itemRunes]), itemRunes
	}
	header, err := net.NewWarningHeader(299, agent, text)
	if err != nil {
		return
	}
	w.written += runes
	w.writer.Header().Add("Warning", header)
}
