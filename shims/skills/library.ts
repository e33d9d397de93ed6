import { createHash } from 'node:crypto';
import { readdir, realpath } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import type { SkillsConfig } from './config.js';
import { ForbiddenPathError, readInside } from './folder.js';
import { BrokenSkillError, isSkillName, parseSkill, type SkillHead } from './front-matter.js';

/** One skill as it lies on disk. */
export interface Skill extends Omit<SkillHead, 'name'> {
  readonly name: string;
  readonly folder: string;
  /** The name of its file, `SKILL.md` in whatever case. */
  readonly file: string;
  /** Tells whether what the catalogue says of it has changed. */
  readonly digest: string;
}

/** A folder that looks like a skill and is none, or a directory that is not there. */
export interface SkillFault {
  /** Below its directory, so that it may be shown to clients. */
  readonly path: string;
  readonly reason: string;
  /** The directory itself: that is the operator's to know, and no client's. */
  readonly isDirectory?: true;
}

export interface Library {
  readonly skills: ReadonlyMap<string, Skill>;
  readonly faults: readonly SkillFault[];
}

/** Skills may lie in folders that only group them. */
const MAX_DEPTH = 3;
const MAX_FOLDERS = 2000;

/** Finds the skills of all directories; what is broken is told and left out. */
export async function scanSkills({ directories, only }: Pick<SkillsConfig, 'directories' | 'only'>): Promise<Library> {
  const skills = new Map<string, Skill>();
  const faults: SkillFault[] = [];
  for (const directory of directories) {
    const root = resolve(directory);
    const found = await skillFolders(root).catch(() => undefined);
    if (found === undefined) {
      faults.push({ path: basename(root), reason: 'this directory of skills cannot be read', isDirectory: true });
      continue;
    }
    for (const { folder, file, path } of found) {
      try {
        const skill = await readSkill(folder, file);
        if (only !== undefined && !only.includes(skill.name)) continue;
        if (skills.has(skill.name))
          throw new BrokenSkillError(`another skill is named ${JSON.stringify(skill.name)} already`);
        skills.set(skill.name, skill);
      } catch (error) {
        faults.push({ path, reason: reasonOf(error) });
      }
    }
  }
  return { skills: new Map([...skills].sort(([a], [b]) => (a < b ? -1 : 1))), faults };
}

/** In words that may be shown: what the system says of a file has its whole path in it. */
function reasonOf(error: unknown): string {
  return error instanceof BrokenSkillError || error instanceof ForbiddenPathError ? error.message : 'it cannot be read';
}

async function readSkill(folder: string, file: string): Promise<Skill> {
  const { text } = await readInside(folder, file);
  const { head } = await parseSkill(text);
  const name = head.name ?? basename(folder).normalize('NFC');
  if (!isSkillName(name)) throw new BrokenSkillError('neither its name nor that of its folder can be used');
  const digest = createHash('sha256')
    .update(`${head.description}\n${head.compatibility ?? ''}`)
    .digest('hex')
    .slice(0, 12);
  return { ...head, name, folder, file, digest };
}

/** The body of a skill as it is now. @throws BrokenSkillError, ForbiddenPathError */
export async function readBody({ folder, file }: Skill): Promise<string> {
  const { text } = await readInside(folder, file);
  return (await parseSkill(text)).body;
}

interface Found {
  readonly folder: string;
  readonly file: string;
  readonly path: string;
}

async function skillFolders(root: string): Promise<Found[]> {
  const found: Found[] = [];
  const seen = new Set<string>();
  const walk = async (folder: string, path: string, depth: number): Promise<void> => {
    const real = await realpath(folder);
    if (seen.has(real) || seen.size >= MAX_FOLDERS) return;
    seen.add(real);
    const entries = await readdir(folder, { withFileTypes: true });
    const file =
      entries.find(({ name }) => name === 'SKILL.md') ?? entries.find(({ name }) => name.toLowerCase() === 'skill.md');
    if (file !== undefined) {
      found.push({ folder, file: file.name, path: path === '' ? file.name : `${path}/${file.name}` });
      return;
    }
    if (depth >= MAX_DEPTH) return;
    const names = entries
      // A link to a skill is a usual way to share one; where it leads, the operator has decided.
      .filter(
        (entry) =>
          (entry.isDirectory() || entry.isSymbolicLink()) &&
          !entry.name.startsWith('.') &&
          entry.name !== 'node_modules',
      )
      .map(({ name }) => name)
      .sort();
    for (const name of names) {
      await walk(join(folder, name), path === '' ? name : `${path}/${name}`, depth + 1).catch(() => undefined);
    }
  };
  await walk(root, '', 0);
  return found;
}
