package openai

import (
	"encoding/base64"
	"fmt"
	"strings"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// image is the picture of an image_url part, nil = none.
type image struct{ *execution.Image }

// ReadJSON implements [dialect.Reader].
func (i *image) ReadJSON(at string, raw []byte) *dialect.Refusal {
	var url string
	ref := dialect.Object(at, raw, func(name string) any {
		switch name {
		case "url":
			return &url
		case "detail": // how closely to look is the provider's own choice in a run
			return dialect.Ignored{}
		}
		return nil
	})
	if ref != nil {
		return ref
	}
	i.Image, ref = readDataURL(at+".url", url)
	return ref
}

// readDataURL reads a data: URL (RFC 2397) of an image. No other URL is taken, since nothing is ever fetched: neither
// the edge nor a node may be told by a caller where to connect to.
func readDataURL(at, url string) (*execution.Image, *dialect.Refusal) {
	const scheme, encoding = "data:", ";base64"
	refuse := func(text string) (*execution.Image, *dialect.Refusal) { return nil, dialect.Refuse(at, at+": "+text) }
	if len(url) < len(scheme) || !strings.EqualFold(url[:len(scheme)], scheme) {
		return refuse("nothing is fetched here; give the image itself, as in data:image/png;base64,…")
	}
	head, data, ok := strings.Cut(url[len(scheme):], ",")
	if !ok || len(head) < len(encoding) || !strings.EqualFold(head[len(head)-len(encoding):], encoding) {
		return refuse("must hold the image in base64, as in data:image/png;base64,…")
	}
	mediaType, _, _ := strings.Cut(strings.ToLower(head), ";")
	if mediaType == "image/jpg" { // common, and unknown to providers that go by the registered names
		mediaType = "image/jpeg"
	}
	if !execution.IsImageType(mediaType) {
		return refuse("must say what kind of image it is, as in data:image/png;base64,…")
	}
	tooLarge := fmt.Sprintf("the image has more than the %d bytes that are allowed", execution.MaxImage)
	if base64.StdEncoding.DecodedLen(len(data)) > execution.MaxImage+2 { // two may be padding
		return refuse(tooLarge)
	}
	picture, err := base64.StdEncoding.DecodeString(data)
	switch {
	case err != nil:
		return refuse("the image isn't base64")
	case len(picture) > execution.MaxImage:
		return refuse(tooLarge)
	case len(picture) == 0:
		return refuse("the image is empty")
	}
	return &execution.Image{MediaType: mediaType, Data: picture}, nil
}
