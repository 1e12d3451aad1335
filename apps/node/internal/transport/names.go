package transport

import (
	"strings"
	"unicode"

	pb "iop/proto/iop"
)

// reasonName is the stable name of a register reason.
func reasonName(r pb.RegisterReason) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "REGISTER_REASON_"))
}

// goodbyeName is the stable name of a Goodbye's code.
func goodbyeName(c pb.GoodbyeCode) string {
	return strings.ToLower(strings.TrimPrefix(c.String(), "GOODBYE_CODE_"))
}

// printable bounds what a peer's words may do to a log or a status page.
func printable(s string) string {
	const most = 256
	var b strings.Builder
	for _, r := range s {
		if b.Len() > most {
			break
		}
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		}
	}
	return b.String()
}
