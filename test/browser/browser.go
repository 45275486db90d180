// Package browser drives Chromium through its DevTools protocol, for tests of pages.
package browser

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

// replyTimeout limits the time until the browser replies.
const replyTimeout = time.Minute

// Tab is a page in a browser. Each Tab has its own browser process.
type Tab struct {
	t       *testing.T
	in      *os.File
	session string

	mu      sync.Mutex
	last    int
	pending map[int]chan reply
}

type reply struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Open starts Chromium with an empty page, and stops it at the end of the test. It skips the test if Chromium is not
// installed.
func Open(t *testing.T) *Tab {
	t.Helper()
	executable := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			executable = path
			break
		}
	}
	if executable == "" {
		t.Skip("Chromium is not installed: apt-get install chromium")
	}
	tab := &Tab{t: t, pending: map[int]chan reply{}}
	tab.start(executable)
	var target struct{ TargetID string }
	tab.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	tab.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	tab.session = attached.SessionID
	return tab
}

// start starts the browser. It reads commands from file descriptor 3 and writes replies to 4, each ended by a zero
// byte.
func (tab *Tab) start(executable string) {
	t := tab.t
	t.Helper()
	commandsOut, commandsIn, err := os.Pipe()
	check(t, err)
	repliesOut, repliesIn, err := os.Pipe()
	check(t, err)
	command := exec.Command(executable, "--headless=new", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--hide-scrollbars",
		"--no-first-run", "--disable-background-networking", "--no-proxy-server", "--remote-debugging-pipe",
		"--user-data-dir="+t.TempDir())
	command.ExtraFiles = []*os.File{commandsOut, repliesIn}
	check(t, command.Start())
	check(t, commandsOut.Close())
	check(t, repliesIn.Close())
	tab.in = commandsIn
	done := make(chan struct{})
	go func() {
		defer close(done)
		tab.receive(bufio.NewReader(repliesOut))
	}()
	t.Cleanup(func() {
		tab.session = ""
		tab.call("Browser.close", nil, nil)
		_ = command.Wait() // the exit code of a closed browser does not matter
		<-done
		commandsIn.Close()
		repliesOut.Close()
	})
}

// receive passes replies to the callers until the browser ends. It drops events.
func (tab *Tab) receive(in *bufio.Reader) {
	for {
		content, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var message struct {
			ID int `json:"id"`
			reply
		}
		if json.Unmarshal(content[:len(content)-1], &message) != nil || message.ID == 0 {
			continue
		}
		tab.mu.Lock()
		waiter := tab.pending[message.ID]
		delete(tab.pending, message.ID)
		tab.mu.Unlock()
		if waiter != nil {
			waiter <- message.reply
		}
	}
}

// call sends a command and waits for the reply.
func (tab *Tab) call(method string, params map[string]any, result any) {
	t := tab.t
	t.Helper()
	waiter := make(chan reply, 1)
	tab.mu.Lock()
	tab.last++
	id := tab.last
	tab.pending[id] = waiter
	tab.mu.Unlock()
	message := map[string]any{"id": id, "method": method, "params": params}
	if tab.session != "" {
		message["sessionId"] = tab.session
	}
	content, err := json.Marshal(message)
	check(t, err)
	_, err = tab.in.Write(append(content, 0))
	check(t, err)
	select {
	case r := <-waiter:
		if r.Error != nil {
			t.Fatalf("%s: %s", method, r.Error.Message)
		}
		if result != nil {
			check(t, json.Unmarshal(r.Result, result))
		}
	case <-time.After(replyTimeout):
		t.Fatalf("no reply to %s after %s", method, replyTimeout)
	}
}

// Screen is a screen of a device.
type Screen struct {
	Width, Height int // CSS pixels
	Mobile, Dark  bool
}

// Show sets the screen and loads a page.
func (tab *Tab) Show(screen Screen, url string) {
	tab.t.Helper()
	tab.call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": screen.Width, "height": screen.Height, "deviceScaleFactor": 1, "mobile": screen.Mobile,
	}, nil)
	scheme := "light"
	if screen.Dark {
		scheme = "dark"
	}
	tab.call("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}},
	}, nil)
	tab.call("Page.navigate", map[string]any{"url": url}, nil)
	tab.Wait("document.readyState === 'complete' && location.href !== 'about:blank'")
}

// Evaluate evaluates an expression of JavaScript and decodes its value. If the value is a promise, it waits for the
// result.
func (tab *Tab) Evaluate(expression string, result any) {
	t := tab.t
	t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	tab.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		t.Fatalf("%s: %s %s", expression, r.ExceptionDetails.Text, r.ExceptionDetails.Exception.Description)
	}
	check(t, json.Unmarshal(r.Result.Value, result))
}

// Wait evaluates an expression until it is true.
func (tab *Tab) Wait(expression string) {
	tab.t.Helper()
	poll := fmt.Sprintf(`new Promise((resolve) => {
		const begin = Date.now();
		const look = () => (%s) ? resolve(true) : Date.now() - begin > 50000 ? resolve(false) : setTimeout(look, 20);
		look();
	})`, expression)
	var ok bool
	if tab.Evaluate(poll, &ok); !ok {
		tab.t.Fatalf("%s is not true", expression)
	}
}

// Screenshot returns the visible part of the page as a PNG of at most 256 colours, which is a quarter of the size.
func (tab *Tab) Screenshot() []byte {
	tab.t.Helper()
	var shot struct{ Data string }
	tab.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	content, err := base64.StdEncoding.DecodeString(shot.Data)
	check(tab.t, err)
	picture, err := png.Decode(bytes.NewReader(content))
	check(tab.t, err)
	reduced := image.NewPaletted(picture.Bounds(), frequent(picture))
	draw.Draw(reduced, picture.Bounds(), picture, picture.Bounds().Min, draw.Src)
	var out bytes.Buffer
	check(tab.t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced))
	return out.Bytes()
}

// frequent returns the most frequent colours of a picture.
func frequent(picture image.Image) color.Palette {
	counts := map[color.RGBA]int{}
	bounds := picture.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int { return counts[b] - counts[a] })
	var palette color.Palette
	for _, c := range colours[:min(len(colours), 256)] {
		palette = append(palette, c)
	}
	return palette
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
