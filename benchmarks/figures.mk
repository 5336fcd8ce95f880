# `make bench` makes every figure of README.md and docs, by the command that stands beside it there. It takes hours. It
# does not repeat what docs call measured once, nor the store's campaigns.
# The output stays in $(FIGURES): a run that was cut short goes on, and `make runs/bench/store.txt` makes one figure.
FIGURES ?= runs/bench
# More books, a folder or a .tar.xz. Without them haystacks end at what the shipped books hold, and the demo reads these
# again. The fusion is left out, as it is fitted on books that no haystack has.
CORPUS ?=

SCRIPTS := kv_operators index index_recall two_levels heads_keys meaning hnsw dnii gardener tag_tree prefetch tagger store growth embedding ram ram_read read decode drafts batch forks recall \
  anchors tombstones architectures fit_confidence $(if $(CORPUS),fit_fusion dnii_passages)
EVALUATIONS := demo.txt cold.txt walker.txt graph.png needle.json needle_close.json ppl.json suite.txt
comma := ,
NEEDLE_LENGTHS ?= 32768,131072,$(if $(CORPUS),524288$(comma)1000000,262144)
INDEX_LENGTHS ?= 131072 $(if $(CORPUS),393216 1000000,196608)
RAM_LENGTHS ?= 100000 250000 $(if $(CORPUS),500000 750000 1000000)
PLACES ?= $(if $(CORPUS),40,24)
SUITE_LENGTHS ?= 128K
HNSW_VECTORS ?= 1000000
BOOKS := $(if $(CORPUS),--corpus "$(CORPUS)")

# needle.json leaves a memory of every length, named by its tokens. For recipes: that of 131,072, and the longest.
NEEDLE_MEMORIES = ls -d $(FIGURES)/needle/[0-9]*.everlong | sort -V
NEEDLE_131K = "$$($(NEEDLE_MEMORIES) | sed -n 2p)"
NEEDLE_LONGEST = "$$($(NEEDLE_MEMORIES) | tail -n 1)"

.DELETE_ON_ERROR:

# Packages that some benchmarks compare with.
$(FIGURES)/extra.stamp: pyproject.toml | setup
	mkdir -p $(@D)
	python -m pip install -q --no-deps $$(python .ci/requirements.py --extra bench)
	touch $@

$(FIGURES)/hnsw.txt $(FIGURES)/dnii.txt $(FIGURES)/dnii_passages.txt: | $(FIGURES)/extra.stamp

$(FIGURES)/%.txt: benchmarks/%.py | setup
	mkdir -p $(@D)
	python $< > $@

$(FIGURES)/index.txt: benchmarks/index.py | setup
	mkdir -p $(@D)
	python $< --tokens 10000 100000 1000000 10000000 16000000 --plot $(FIGURES)/index-scaling.png > $@

$(FIGURES)/meaning.txt: benchmarks/meaning.py | setup
	mkdir -p $(@D)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python $< --tokens 131072 1000000 4000000 > $@

$(FIGURES)/store.txt: benchmarks/store.py | setup
	mkdir -p $(@D)
	python $< > $@
	python $< --tokens 1000000 >> $@

$(FIGURES)/growth.txt: benchmarks/growth.py | setup
	mkdir -p $(@D)
	OMP_NUM_THREADS=1 python $< $(FIGURES)/growth --plot $(FIGURES)/growth.svg > $@
	OMP_NUM_THREADS=1 python $< $(FIGURES)/growth-notes --block-tokens 24 --tokens 100000 300000 1000000 3000000 >> $@

$(FIGURES)/batch.txt: benchmarks/batch.py | setup
	mkdir -p $(@D)
	python $< --dtype float32 > $@
	python $< --new-tokens 4 --questions 0 --chunks 8 32 64 128 >> $@

$(FIGURES)/cold.txt: | setup
	mkdir -p $(@D)
	OMP_NUM_THREADS=1 everlong bench --cold --sizes 60000 > $@

$(FIGURES)/read.txt: benchmarks/read.py | setup
	mkdir -p $(@D)
	python $< --tokens 8192 > $@

$(FIGURES)/ram_read.txt: benchmarks/ram.py | setup
	mkdir -p $(@D)
	OMP_NUM_THREADS=1 python $< --read $(BOOKS) --sizes $(RAM_LENGTHS) > $@

$(FIGURES)/hnsw.txt: benchmarks/hnsw.py $(FIGURES)/needle.json | setup
	mkdir -p $(@D)
	python $< > $@
	OMP_NUM_THREADS=1 python $< --vectors $(HNSW_VECTORS) --links 32 >> $@
	OMP_NUM_THREADS=1 python $< --vectors $(HNSW_VECTORS) --memory $(NEEDLE_131K) >> $@

$(FIGURES)/dnii_passages.txt: benchmarks/dnii.py benchmarks/passage_vectors.py | setup
	mkdir -p $(@D)
	OMP_NUM_THREADS=1 python $< --text "$(CORPUS)" --work $(FIGURES)/passages --vectors 1000000 > $@

$(FIGURES)/prefetch.txt: benchmarks/prefetch.py | setup
	mkdir -p $(@D)
	OMP_NUM_THREADS=1 python $< $(FIGURES)/stories.everlong > $@

$(FIGURES)/tagger.txt: benchmarks/tagger.py $(FIGURES)/prefetch.txt | setup
	OMP_NUM_THREADS=1 python $< $(FIGURES)/stories.everlong > $@

$(FIGURES)/embedding.txt: benchmarks/embedding.py | setup
	mkdir -p $(@D)
	python $< --threads 1 --tokens 2048 > $@
	python $< --tokens 4096 >> $@

$(FIGURES)/index_recall.txt: benchmarks/index_recall.py | setup
	mkdir -p $(@D)
	python $< $(FIGURES)/index_recall --tokens $(INDEX_LENGTHS) $(BOOKS) \
	  --set frame.rolling_tokens=512 --set frame.chunk_tokens=256 > $@

$(FIGURES)/two_levels.txt: benchmarks/two_levels.py $(FIGURES)/index_recall.txt | setup
	python $< $(FIGURES)/index_recall/haystack.everlong > $@

$(FIGURES)/heads_keys.txt: benchmarks/heads_keys.py $(FIGURES)/needle.json | setup
	python $< $(NEEDLE_131K) --questions 98 > $@

$(FIGURES)/fit_fusion.txt: benchmarks/fit_fusion.py | setup
	everlong eval towers --fitting --keep $(FIGURES)/fusion --lengths 128K $(BOOKS)
	everlong eval towers --fitting --keep $(FIGURES)/fusion --lengths 128K $(BOOKS) --no-stories \
	  --set search.index=heads,lexical,meaning,embedding
	python $< $(FIGURES)/fusion/stories.json $(FIGURES)/fusion/planted-*.json > $@

# What the confidence is fitted to and tried on. The weights themselves are left as they are.
$(FIGURES)/fit_confidence.txt: benchmarks/fit_confidence.py | setup
	everlong eval towers --dtype bfloat16 --fitting --keep $(FIGURES)/fitting --lengths 128K $(BOOKS) \
	  --set search.index=heads,lexical,meaning,embedding
	everlong eval towers --dtype bfloat16 --keep $(FIGURES)/meaning --lengths 128K $(BOOKS)
	python $< $(FIGURES)/fitting/stories.json --test $(FIGURES)/meaning/*.json > $@
	everlong plot $(FIGURES)/meaning/stories.json

$(FIGURES)/demo.txt: | setup
	mkdir -p $(@D)
	everlong demo $(if $(TOKENS),--tokens $(TOKENS)) $(BOOKS) --out $(FIGURES)/demo > $@

$(FIGURES)/needle.json: | setup
	mkdir -p $(@D)
	everlong eval niah --lengths $(NEEDLE_LENGTHS) --facts 8 --kinds pass-key,uuid,name,best-thing,quote --seed 11 $(BOOKS) \
	  --keep $(FIGURES)/needle --set archive.host_bytes=2000000000 --json > $@
	everlong plot $@

$(FIGURES)/needle_close.json: | setup
	mkdir -p $(@D)
	everlong eval niah --lengths 32768,131072 --facts 40 --kinds pass-key,uuid --seed 12 --json > $@

$(FIGURES)/ppl.json: | setup
	mkdir -p $(@D)
	everlong eval ppl --places $(PLACES) $(BOOKS) --out $(FIGURES)/ppl --json > $@
	everlong plot $@

$(FIGURES)/walker.txt: | setup
	mkdir -p $(@D)
	everlong eval walker --texts 3 --dtype bfloat16 > $@

$(FIGURES)/graph.png: | setup
	mkdir -p $(@D)/graph
	python -c 'import pathlib, everlong.data; [pathlib.Path("$(@D)/graph", book.name + ".txt").write_text(book.text[:48_000]) \
	  for book in everlong.data.shipped_books()]'
	everlong read $(@D)/graph/*.txt -d $(@D)/graph.everlong --dtype bfloat16 --set archive.graph=true --set archive.tagger=keyphrases \
	  --set search.index=heads,lexical,meaning,embedding --set frame.rolling_tokens=512 --set frame.chunk_tokens=256
	everlong graph $(@D)/graph.everlong --json > $(@D)/graph.json
	everlong plot $(@D)/graph.json --out $(@D)

$(FIGURES)/suite.txt: | setup
	mkdir -p $(@D)
	everlong eval all --lengths $(SUITE_LENGTHS) $(BOOKS) --plot --out $(FIGURES)/suite > $@

.PHONY: bench
bench: $(SCRIPTS:%=$(FIGURES)/%.txt) $(addprefix $(FIGURES)/,$(EVALUATIONS))  ## every figure of README and docs; hours
