package serving

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// longestFlag is the maximum length in bytes of the new value of a flag.
const longestFlag = 1 << 10

// DebugFlags serves /debug/flags, the list of flags that can be changed at run time.
func DebugFlags() http.Handler { return debugFlags{} }

type debugFlags struct{}

func (debugFlags) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = io.WriteString(w, `<html>
<head>
<title>/debug/flags/</title>
</head>
<body>
/debug/flags/<br>
<br>
flags:<br>
<table>
<tr>v<br>
</table>
<br>
full flags configurable<br>
</body>
</html>
`)
}

// Verbosity is implemented by a logger whose verbosity can be changed.
type Verbosity interface {
	SetVerbosity(level uint32)
}

// VerbosityFlag serves /debug/flags/v, where PUT changes the verbosity.
func VerbosityFlag(verbosity Verbosity) http.Handler { return verbosityFlag{verbosity} }

type verbosityFlag struct{ verbosity Verbosity }

func (f verbosityFlag) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		writePlain(w, http.StatusNotAcceptable, "unsupported http method")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestFlag))
	if err != nil {
		writePlain(w, http.StatusBadRequest, "error reading request body: "+err.Error())
		return
	}
	level, err := strconv.ParseUint(string(body), 10, 31)
	if err != nil {
		writePlain(w, http.StatusBadRequest, err.Error())
		return
	}
	f.verbosity.SetVerbosity(uint32(level))
	writePlain(w, http.StatusOK, "successfully set klog.logging.verbosity to "+string(body))
}

func writePlain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text)
}
