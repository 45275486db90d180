package differential

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// eventTimeout is how long the script waits for the next event of a stream.
const eventTimeout = 20 * time.Second

var (
	errEnded   = errors.New("the stream ended")
	errSilence = errors.New("nothing more came")
)

// stream collects the events of an open response.
type stream struct {
	body   io.ReadCloser
	events chan []byte
	done   chan struct{}
	once   sync.Once
}

func newStream(response *http.Response) *stream {
	s := &stream{body: response.Body, events: make(chan []byte), done: make(chan struct{})}
	next := nextLine
	switch mediaType := response.Header.Get("Content-Type"); {
	case strings.HasPrefix(mediaType, protobufType):
		next = nextFrame
	case mediaType == cborSequenceType:
		next = nextItem(response.Body)
	}
	go s.read(next)
	return s
}

func (s *stream) read(next func(*bufio.Reader) ([]byte, error)) {
	defer close(s.events)
	reader := bufio.NewReader(s.body)
	for {
		event, err := next(reader)
		if err != nil {
			return
		}
		select {
		case s.events <- event:
		case <-s.done:
			return
		}
	}
}

func nextLine(reader *bufio.Reader) ([]byte, error) { return reader.ReadBytes('\n') }

// nextFrame reads a length-prefixed protobuf event and returns it as JSON.
func nextFrame(reader *bufio.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(reader, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(reader, frame); err != nil {
		return nil, err
	}
	return eventJSON(frame)
}

// take returns the next events until enough returns true. If the stream fails before, it returns the events that were
// received and the error.
func (s *stream) take(enough func([][]byte) bool) (events [][]byte, err error) {
	timer := time.NewTimer(eventTimeout)
	defer timer.Stop()
	for !enough(events) {
		select {
		case event, ok := <-s.events:
			if !ok {
				return events, errEnded
			}
			events = append(events, event)
			timer.Reset(eventTimeout)
		case <-timer.C:
			return events, errSilence
		}
	}
	return events, nil
}

func (s *stream) close() {
	s.once.Do(func() {
		close(s.done)
		_ = s.body.Close()
	})
}
