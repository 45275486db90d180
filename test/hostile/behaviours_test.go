package hostile

import (
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// behaviour is what a hostile server does with a request.
type behaviour struct {
	name string
	// standard behaviours are tested by default.
	standard bool
	serve    http.HandlerFunc
}

// behaviours returns all behaviours. elsewhere is the URL of another server, which must get no request.
func behaviours(elsewhere string) []behaviour {
	list := []behaviour{
		{"never answers", true, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		{"sends space without end", true, func(w http.ResponseWriter, _ *http.Request) { repeat(w, " ") }},
		{"sends JSON without end", false, func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"kind":"`)
			repeat(w, "x")
		}},
		{"nests without end", false, func(w http.ResponseWriter, _ *http.Request) { repeat(w, `{"status":`) }},
		{"sends a bomb", true, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			repeat(z, " ")
		}},
		{"sends byte by byte", false, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				<-time.After(50 * time.Millisecond) // the behaviour
			}
		}},
		{"sends headers without end", true, func(w http.ResponseWriter, _ *http.Request) {
			raw(w, func(c net.Conn) {
				fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
				for i := 0; ; i++ {
					if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
						return
					}
				}
			})
		}},
		{"continues without end", false, func(w http.ResponseWriter, _ *http.Request) {
			raw(w, func(c net.Conn) { repeat(c, "HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n") })
		}},
		{"fails without end", true, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			repeat(w, "failure ")
		}},
		{"is another protocol", false, func(w http.ResponseWriter, _ *http.Request) {
			raw(w, func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-OpenSSH\r\n") })
		}},
		{"sends null", false, text(http.StatusOK, "application/json", "null")},
		{"sends a list", false, text(http.StatusOK, "application/json", "[]")},
		{"sends HTML", true, text(http.StatusOK, "text/html", "<html>")},
		{"sends protobuf", false, text(http.StatusOK, "application/vnd.kubernetes.protobuf", "k8s\x00\xff\xff\xff\xff\xff")},
		{"switches protocols", false, func(w http.ResponseWriter, _ *http.Request) {
			raw(w, func(c net.Conn) {
				fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				repeat(c, "x")
			})
		}},
		{"asks for patience", false, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "86400")
			text(http.StatusTooManyRequests, "text/plain", "later")(w, r)
		}},
		{"promises more", false, func(w http.ResponseWriter, _ *http.Request) {
			raw(w, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n{}") })
		}},
	}
	for _, code := range []int{
		http.StatusMovedPermanently, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
	} {
		list = append(list, behaviour{fmt.Sprint("redirects with ", code), code == http.StatusTemporaryRedirect,
			func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere, code) }})
	}
	const response = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
		"20\r\n\r\n{\"kind\":\"something\"}"
	for n := range len(response) {
		list = append(list, behaviour{fmt.Sprint("resets the connection after ", n, " bytes"), n == 0 || n == len(response)-1,
			func(w http.ResponseWriter, _ *http.Request) {
				raw(w, func(c net.Conn) { fmt.Fprint(c, response[:n]) })
			}})
	}
	return list
}

func text(code int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

// repeat writes a text until the client is gone.
func repeat(w io.Writer, text string) {
	block := []byte(strings.Repeat(text, 1+32<<10/len(text)))
	for {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// raw takes over the connection, and closes it.
func raw(w http.ResponseWriter, use func(net.Conn)) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	use(conn)
}
