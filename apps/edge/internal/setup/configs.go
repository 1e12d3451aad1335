package setup

import (
	"strings"

	"iop/packages/go/identity"
)

// expand puts what a site is called into the text of a configuration.
func (s *site) expand(text string) string {
	domain := s.owner.TrustDomain()
	return strings.NewReplacer("NODES", s.Nodes, "HTTP", s.HTTP, "DOMAIN", domain, "NODE", s.Node, "CALLER", s.Caller,
		"EDGE_ID", string(identity.EdgeID(domain)), "EDGE", s.Edge).Replace(text)
}

const edgeConfig = `# Configuration of an Edge in mode managed. Save it, and it holds: the running Edge reads it again.
# iop-edge check -c FILE says what is wrong with it. Every key is explained in the example that came with the program.
mode: managed
tls: {cert: ./cert.pem, key: ./key.pem, ca: ./ca.pem, trust_domain: DOMAIN}
listen:
  nodes: NODES        # nodes dial this one
  http: HTTP          # callers use this one
  admin: 127.0.0.1:8081
state_dir: ./state

nodes:
  - id: NODE
    token_hashes: [{file: ./NODE.token.sha256}]
    adapters:
      # Built in, answers by itself. Take it out once there is a real one.
      - {name: loopback, kind: loopback, max_concurrency: 4}
      # An Ollama on the node's machine:
      # - {name: ollama, kind: auto, max_concurrency: 4}
      # llama.cpp, vLLM, LM Studio:
      # - {name: llama, kind: openai, base_url: "http://127.0.0.1:8000", max_concurrency: 4}

principals:
  - {id: CALLER, key_hashes: ["file:./CALLER.key.sha256"]}

routes:
  - model: "*"        # every model that the node has, under its own name
`

const nodeConfig = `# Configuration of the node NODE. What it serves stands in the Edge's file.
edges: ["EDGE"]
token: file:./node.token
tls: {cert: ./cert.pem, key: ./key.pem, ca: ./ca.pem, edge_spiffe_id: EDGE_ID}
data_dir: ./data
admin: {listen: 127.0.0.1:8082}
`
