package main

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode"
)

// Whatever an Edge sends to who follows events or a run: no panic, an end, and of events nothing on the terminal that
// could steer it.
func FuzzStreams(f *testing.F) {
	for _, s := range []string{"id: 7\ndata: {\"kind\":\"ready\",\"node\":\"a\\u001b[2J\"}\n\n", "event: delta\ndata: {\"text\":\"hi\"}\n\nevent: complete\ndata: {\"finish_reason\":\"stop\",\"usage\":null}\n\n",
		"data: {\"kind\":\"missed\",\"missed\":3,\"why\":\"slow\"}\n\n", "event: error\ndata: {\"error\":{\"code\":7}}\n\n", ": nothing\n", "data: [\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		var out bytes.Buffer
		follow := &follower{ctl: &ctl{output: "table"}, out: &out, err: io.Discard}
		if err := follow.read(bufio.NewReader(bytes.NewReader(stream)), func() {}); err == nil {
			t.Fatal("the stream ended, and that is no error")
		}
		if at := strings.IndexFunc(out.String(), func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }); at >= 0 {
			t.Fatalf("%q on the terminal", out.String()[at:])
		}
		_ = (&printer{out: io.Discard, err: io.Discard}).stream(bytes.NewReader(stream)) // with or without an end
	})
}
