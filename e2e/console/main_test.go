// Package console looks at the Edge's console in a real browser: headless Chromium against built programs, and against a
// stand-in between them that makes states which a real Edge has only for a moment. It is a module of its own, so that the
// browser's driver stays out of the product's dependencies, and it knows nothing of the product but its addresses.
//
// `make test-console` runs it. IOP_BIN is the directory of the programs; IOP_CACHE is where axe-core is kept, without which
// pages aren't checked by it; IOP_SHOTS is a directory for screenshots, which are not taken without it. Without a Chromium
// all is skipped.
package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/chromedp/chromedp"
)

// world is what the tests share; TestMain makes it once.
type world struct {
	bin     string
	shots   string          // "" = none are taken
	browser context.Context // of which each tab is a child
	axe     string          // the script, "" = it can't be had here
	main    *site           // open on loopback, with two nodes
}

var the world // set once by TestMain before any test

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	the.bin, the.shots = os.Getenv("IOP_BIN"), os.Getenv("IOP_SHOTS")
	if the.shots != "" {
		if err := os.MkdirAll(the.shots, 0o755); err != nil {
			fmt.Println("FAIL:", err)
			return 1
		}
	}
	if the.bin == "" {
		fmt.Println("skipped: IOP_BIN isn't set; run `make test-console`")
		return 0
	}
	program, err := chromium()
	if err != nil {
		fmt.Println("skipped: the console in a browser, since there is no Chromium here:", err)
		return 0
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if the.axe, err = axeCore(ctx, os.Getenv("IOP_CACHE")); err != nil {
		fmt.Println("skipped: checks by axe-core, since it can't be had here:", err)
	}
	end, err := startBrowser(ctx, program)
	if err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	defer end()
	code := 1
	if the.main, err = startSite(ctx, "alice"); err == nil {
		code = m.Run()
		err = the.main.stop()
	}
	if err != nil {
		fmt.Println("FAIL:", err)
		return 1
	}
	return code
}

// chromium finds the browser.
func chromium() (string, error) {
	var errs []error
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		path, err := exec.LookPath(name)
		if err == nil {
			return path, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

func startBrowser(ctx context.Context, program string) (end func(), err error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.NoSandbox, // CI is root in a sandbox of its own
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("lang", "en-US"))
	allocated, free := chromedp.NewExecAllocator(ctx, options...)
	browser, cancel := chromedp.NewContext(allocated)
	if err := chromedp.Do(browser); err != nil {
		cancel()
		free()
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	the.browser = browser
	return func() { cancel(); free() }, nil
}
